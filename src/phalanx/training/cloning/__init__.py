"""Behavior cloning on ARC."""
