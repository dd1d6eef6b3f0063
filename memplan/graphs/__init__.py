"""The problem: a profiled graph of operations and tensors, its files, its structure. No torch here."""
