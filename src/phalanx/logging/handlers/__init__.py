"""The places where a run is written down: files, pictures, the console and experiment trackers.

All public names are in `phalanx.logging`; a new tracker is a file here and a line of `trackers.TRACKERS`.
"""
