"""Rule mining, rule sets, link prediction with rules, and inductive evaluation."""
