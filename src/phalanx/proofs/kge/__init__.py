"""Knowledge-graph embeddings: models, training, scoring and files."""
