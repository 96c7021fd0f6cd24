"""Names and module paths of JaxARC."""
