"""Analysis of lengths, buckets and batches."""
