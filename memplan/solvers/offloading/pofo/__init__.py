"""POFO: recomputation and offload of a chain's activations."""
