"""Rk-Rotor and Rockmate: a chain whose blocks have options.

Doors: rk_rotor.
"""
