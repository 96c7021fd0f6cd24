"""What a language model plays: episodes by task and seed, and which of them it learns from."""
