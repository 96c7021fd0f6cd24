"""Live plans: batches of streams without end, mixed by tokens, packed in a bounded pool, resumed exactly.

Public names are in `phalanx.tokens`; plans of samples that all exist are in `plans`.
"""
