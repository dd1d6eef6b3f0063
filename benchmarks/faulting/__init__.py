"""Training on the simulated device while the machine is not as planned."""
