"""Modules that provide the import paths and names of other projects, implemented with Phalanx."""
