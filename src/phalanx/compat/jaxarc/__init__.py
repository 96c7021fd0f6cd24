"""Compatibility package with the module paths and names of JaxARC."""
