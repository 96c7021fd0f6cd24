"""Drop-in replacement for `jaxarc.utils`."""
