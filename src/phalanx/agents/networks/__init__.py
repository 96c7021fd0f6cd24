"""Networks and the distributions over actions that they parameterize."""
