"""Packing: short samples share rows, apart by segments."""
