"""Values that a trace reads from Python's objects: recorded while it runs, checked before iterations.

Public modules: carried, contents, forbidden, recorder.
"""
