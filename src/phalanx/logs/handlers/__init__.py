"""The places where a run is written down: files, pictures, the console and experiment trackers.

All public names are in `phalanx.logs`; a new tracker is a file here and a line of `trackers.TRACKERS`.
"""
