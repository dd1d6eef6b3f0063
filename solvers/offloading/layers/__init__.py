"""A training graph as layers, what runs and what is away in each.

Doors: absences, cpu_updates, early_updates, host_ways, iteration, runs, training.
"""
