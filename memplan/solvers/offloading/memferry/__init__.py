"""MemFerry: weights that are fetched, or read in host memory."""
