"""Analysis of lengths: histograms, what buckets and packing would cost, suggestions, charts.

What is public is opened by `phalanx.tokens`; metrics of finished batches are in `plans`.
"""
