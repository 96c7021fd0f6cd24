"""Runs: the folder, the checkpoints and the loop of every training."""
