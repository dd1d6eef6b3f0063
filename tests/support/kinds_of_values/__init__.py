"""Kinds of values that a model's code can read from outside, each with a change to it.

A kind gives a model's `read`, which returns the factor 1 or 3, and a function that changes it.
"""

from . import attributes, containers, functions, surroundings, tensors
from .holders import KINDS, THREAD, VARIABLE, Data, Slotted

__all__ = [
    "KINDS",
    "THREAD",
    "VARIABLE",
    "Data",
    "Slotted",
    "attributes",
    "containers",
    "functions",
    "surroundings",
    "tensors",
]
