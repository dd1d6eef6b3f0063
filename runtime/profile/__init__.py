"""From a program to a graph with times and bytes, measured or estimated.

Doors: profile, part, estimate, fused_updates, roofline.
"""
