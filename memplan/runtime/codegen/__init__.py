"""Straight-line Python generated from a program and a schedule.

Public modules: codegen, copies, dry_run, iteration, placement, views.
"""
