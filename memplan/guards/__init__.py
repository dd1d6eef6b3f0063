"""What a plan assumes of Python: read in a trace, put back after it, checked before each iteration."""
