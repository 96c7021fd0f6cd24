"""Utilities of JaxARC."""
