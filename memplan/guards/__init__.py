"""Guards: the Python state that a plan assumes, read in a trace, put back after it, checked in iterations."""
