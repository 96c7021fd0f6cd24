"""Charts and reports of sequence lengths."""
