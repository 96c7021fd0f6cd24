"""Knowledge bases: atoms, rules, files, numbers for names, and what follows from them."""
