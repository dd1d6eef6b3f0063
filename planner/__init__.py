"""A schedule: its steps, the simulator that judges it, its figures and bounds. No torch here."""
