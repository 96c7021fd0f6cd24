"""Destinations of logged events: files, images, the terminal and experiment trackers."""
