"""Proofs over knowledge graphs that step in formation: knowledge bases, resolution, the proof environment.

Learning is in `phalanx.agents`.
"""
