"""The replay buffer: samples in rows, drawn by priority, evicted, saved."""
