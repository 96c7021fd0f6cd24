"""Packing: short samples share rows, kept apart by segments.

What is public is opened by `phalanx.tokens`; plans of packed batches are made in `plans`.
"""
