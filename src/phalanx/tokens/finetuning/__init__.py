"""Fine-tuning data as people have it: conversations, prompts with completions, texts, preference pairs.

Public names are in `phalanx.tokens`; what becomes of the samples is planned and packed as any.
"""
