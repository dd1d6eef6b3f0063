"""A device that is not there, as hostile as CUDA."""
