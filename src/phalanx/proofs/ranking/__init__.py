"""Ranking true triples among corruptions."""
