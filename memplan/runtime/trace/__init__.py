"""From a model to a program.

Public modules: align, joint, layers, layouts, lowering, output_layouts, trace, trace_context.
"""
