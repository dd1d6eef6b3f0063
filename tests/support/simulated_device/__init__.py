"""A device made of threads with the hazards of CUDA, for tests and benchmarks on a machine without a GPU."""
