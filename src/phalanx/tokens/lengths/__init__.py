"""Lengths of samples: tables, cache files, datasets, tokenizers, and counting on Ray.

What is public is opened by `phalanx.tokens`; which samples share a batch is decided in `plans`.
"""
