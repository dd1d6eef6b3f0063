"""Offmate: weights, states and activations, by a program over blocks."""
