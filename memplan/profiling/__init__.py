"""Measurements: a program's times and bytes, and planned iterations compared with eager ones."""
