"""MemFerry: weights that come or are read where they lie."""
