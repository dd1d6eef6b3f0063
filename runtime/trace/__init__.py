"""From a model to a program.

Doors: align, joint, layers, layouts, lowering, output_layouts, trace, trace_context.
"""
