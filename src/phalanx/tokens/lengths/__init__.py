"""Lengths of samples: tables, caches, sources and tokenizers."""
