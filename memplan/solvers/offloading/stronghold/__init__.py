"""STRONGHOLD: a working window of layers."""
