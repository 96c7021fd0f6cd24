"""Handlers that write logged events and images to files, the terminal and experiment trackers."""
