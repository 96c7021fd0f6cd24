"""The language model: its network, its batches, its training."""
