"""From a program and a schedule to straight-line Python.

Doors: code, copies, placement, rehearsal, turn.
"""
