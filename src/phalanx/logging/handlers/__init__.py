"""Handlers, which write logged events to files, images, the terminal and experiment trackers."""
