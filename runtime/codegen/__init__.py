"""Straight-line Python generated from a program and a schedule.

Doors: codegen, copies, dry_run, iteration, placement.
"""
