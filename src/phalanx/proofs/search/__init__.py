"""Search for proofs: beam search with a policy, and best-first search with a heuristic."""
