"""Engines: the native kernels and their XLA twins, behind one transition."""
