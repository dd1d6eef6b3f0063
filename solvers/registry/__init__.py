"""Who is there, and how an answer is judged.

Doors: catalogue, run.
"""
