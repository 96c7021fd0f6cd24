"""Resolution: unifies the first goal of a state and lists successor states."""
