"""Checkpoints on chains: none, periodic, binomial, optimal and persistent.

Doors: chen_sqrt, rotor, rotor_least, rotor_table.
"""
