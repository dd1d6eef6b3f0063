"""The module to train and an iteration of it: its inputs, how the loss comes of them, its processes."""
