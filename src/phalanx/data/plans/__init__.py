"""Which samples form each batch, in what order, on which rank."""
