"""Measurement: time and memory of calls, speed of this machine.

Doors: live_bytes, measure, synthetic_inputs, this_machine, update_rates.
"""
