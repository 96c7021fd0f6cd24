"""Batches as arrays, made from a plan and its samples, and as files.

What is public is opened by `phalanx.tokens`; tensors of other libraries are made in `phalanx.adapters`.
"""
