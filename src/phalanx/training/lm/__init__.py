"""Training of language models: SFT and GRPO."""
