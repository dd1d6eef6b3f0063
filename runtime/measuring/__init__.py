"""Measurement: time and memory of calls, speed of this machine.

Doors: live_bytes, measure, stand_ins, this_machine, update_rates.
"""
