"""What is trained: a module, an iteration, what they take for granted.

Doors: captured, file, granted, iteration, python_state, unchanged.
"""
