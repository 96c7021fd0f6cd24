"""The trained ARC agent inside the report page."""
