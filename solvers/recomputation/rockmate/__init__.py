"""Rk-Rotor and Rockmate: a chain whose blocks have options. Begin with rk_rotor.py.

Doors: rk_rotor.
"""
