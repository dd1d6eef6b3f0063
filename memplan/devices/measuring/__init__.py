"""Measurement: time and memory of calls, speed of this machine.

Public modules: kept_machine, link_rates, live_bytes, measure, synthetic_inputs, this_machine, this_network,
timing, update_rates.
"""
