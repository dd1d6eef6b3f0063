"""From a model to a program.

Doors: trace, align, forms, joint, layers, lowering, pretence, settle.
"""
