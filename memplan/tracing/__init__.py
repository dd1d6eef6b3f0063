"""From a PyTorch model to a program."""
