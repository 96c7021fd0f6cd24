"""Phalanx environments as other libraries know environments, one module for each library.

What is adapted lives in the domains. Nothing is imported here, so that no adapter needs another's library.
"""
