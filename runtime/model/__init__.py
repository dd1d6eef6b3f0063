"""What is trained: a module, an iteration, what they take for granted.

Doors: arguments, captured, file, granted, iteration, processes, python_state, reading, unchanged.
"""
