"""O-ILP: the program of Offmate, and its rounding to whole tensors.

Doors: activations, iteration, model, round, states, tensors, weights.
"""
