"""Straight-line Python generated from a program and a schedule.

Doors: code, copies, placement, rehearsal, turn.
"""
