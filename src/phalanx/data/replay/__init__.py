"""Parts of the replay buffer."""
