"""Values that a trace reads from Python's objects: recorded while it runs, checked before iterations.

Doors: carried, contents, forbidden, recorder.
"""
