"""Search guided by a policy, and ranking by it."""
