"""From a model to a program.

Doors: trace, align, forms, joint, pretence, settle.
"""
