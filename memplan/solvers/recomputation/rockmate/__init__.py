"""Rk-Rotor and Rockmate: a chain whose blocks have options. Begin with rk_rotor.py.

Public modules: rk_rotor.
"""
