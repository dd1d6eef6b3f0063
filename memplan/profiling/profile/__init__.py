"""From a program to a graph with times and bytes, measured or estimated.

Public modules: collectives, demand_lines, estimate, estimates, fused_updates, kept_traces, loops, part,
pieces, profile, roofline, rounds, sampled, workspace.
"""
