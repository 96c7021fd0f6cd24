"""Cloning: policies for ARC that learn from demonstrations."""
