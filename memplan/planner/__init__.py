"""A schedule: its steps, the simulator that validates it, its figures and bounds. No torch here."""
