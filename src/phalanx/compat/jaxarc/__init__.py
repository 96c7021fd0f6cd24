"""Drop-in replacements for modules of JaxARC."""
