"""Kernel traces of training iterations, made by seed; five of them are kept as files."""
