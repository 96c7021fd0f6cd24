"""What all benchmarks share: conditions, timing, memory, records, verdicts, peers that are measured in turns.

What is measured is in the programs of the folder above. `timing` and `memory` need the standard library only,
because the runners of other libraries import them too.
"""
