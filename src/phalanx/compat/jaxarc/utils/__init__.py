"""Compatibility replacement for `jaxarc.utils`."""
