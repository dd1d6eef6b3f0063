"""One iteration by a plan: its batch and module are checked, its schedule is run."""
