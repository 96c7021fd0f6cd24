"""Drop-in replacements for modules of chuk-lazarus."""
