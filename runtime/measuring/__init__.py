"""How long calls take and how much memory; how fast this machine is.

Doors: live_bytes, measure, stand_ins, this_machine, update_rates.
"""
