"""Proof search: programs, resolution on both engines, the environment, and the exact prover."""
