"""Batch plans: configs, buckets, the order of an epoch, shards, files, fingerprints and metrics.

What is public is opened by `phalanx.tokens`; the batches themselves are made in `batches`.
"""
