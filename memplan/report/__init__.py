"""A schedule to look at: one page that needs nothing else."""
