"""Machines by name: those that papers measured, and GPUs by their data sheets.

Doors: gpus, presets.
"""
