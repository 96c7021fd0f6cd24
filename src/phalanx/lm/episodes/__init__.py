"""Sources of text episodes."""
