"""Names of JaxARC."""
