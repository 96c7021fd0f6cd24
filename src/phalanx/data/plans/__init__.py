"""Batch plans and streaming plans, which group samples into batches and divide the batches among ranks."""
