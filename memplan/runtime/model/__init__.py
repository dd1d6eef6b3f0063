"""The module to train, an iteration of it, and the guards on what a plan assumes of both.

Public modules: accumulated, arguments, captured, clipping, file, guards, hugging_face, iteration, lora,
processes, python_state, reading, unchanged, variant.
"""
