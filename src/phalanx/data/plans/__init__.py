"""Batch plans and streaming plans, which decide which samples form each batch on each rank."""
