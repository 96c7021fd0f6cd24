"""Policy networks for ARC."""
