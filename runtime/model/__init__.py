"""What is trained: a module, an iteration, what they take for granted.

Doors: accumulated, arguments, captured, clipping, file, granted, hugging_face, iteration, processes,
python_state, reading, unchanged.
"""
