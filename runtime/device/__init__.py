"""The device that computes: memory, streams, clock, random numbers. CUDA's name stands only here.

Doors: device, choice.
"""
