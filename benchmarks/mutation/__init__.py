"""Mutants: which of them do the tests kill? `benchmarks/mutants.py` is the command."""
