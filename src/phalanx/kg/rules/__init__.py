"""Rule mining, rule sets, and link prediction with rules."""
