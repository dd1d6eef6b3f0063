"""memplan: train neural networks within a memory budget, at the least cost in time."""

__version__ = "0.1.0"
