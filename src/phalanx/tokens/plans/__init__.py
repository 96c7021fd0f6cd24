"""Batch plans: configs, buckets, orders, shards, files and fingerprints."""
