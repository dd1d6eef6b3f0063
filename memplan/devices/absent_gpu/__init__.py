"""Traces of the operations that a GPU runs, on a PyTorch that has none.

Public modules: capability, devices, program, questions.
"""
