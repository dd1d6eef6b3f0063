"""From a program to a graph with times and bytes, measured or estimated.

Doors: profile, part, estimate, estimates, fused_updates, roofline, workspace.
"""
