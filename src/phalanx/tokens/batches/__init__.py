"""Batches of tokens: collated arrays and batch files."""
