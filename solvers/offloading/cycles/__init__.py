"""The period of a schedule that moves weights, compiled.

Doors: cycle, facts, replay, steps.
"""
