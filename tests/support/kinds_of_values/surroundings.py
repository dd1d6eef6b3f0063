"""Context variables, the environment, weak references."""

from __future__ import annotations

import os
import weakref

from .holders import VARIABLE, Plain, kind


@kind
def a_context_variable(m):
    VARIABLE.set(1.0)
    return (lambda self: VARIABLE.get()), lambda: VARIABLE.set(3.0)


@kind
def the_environment(m):
    os.environ["MEMPLAN_TEST_FACTOR"] = "1"
    return (lambda self: float(os.environ["MEMPLAN_TEST_FACTOR"])), lambda: os.environ.update(
        MEMPLAN_TEST_FACTOR="3"
    )


@kind
def getenv(m):
    os.environ["MEMPLAN_TEST_FACTOR"] = "1"
    return (lambda self: float(os.getenv("MEMPLAN_TEST_FACTOR", "1"))), lambda: os.environ.update(
        MEMPLAN_TEST_FACTOR="3"
    )


@kind
def in_the_environment(m):
    os.environ.pop("MEMPLAN_TEST_FACTOR", None)
    return (
        (lambda self: 3.0 if "MEMPLAN_TEST_FACTOR" in os.environ else 1.0),
        lambda: os.environ.update(MEMPLAN_TEST_FACTOR="3"),
    )


@kind
def a_weak_reference(m):
    m.strong = Plain()
    m.held = weakref.ref(m.strong)
    return (lambda self: self.held().factor), lambda: setattr(m.strong, "factor", 3.0)


@kind
def another_weak_reference(m):
    m.strong, m.other = Plain(), Plain()
    m.other.factor = 3.0
    m.held = weakref.ref(m.strong)
    return (lambda self: self.held().factor), lambda: setattr(m, "held", weakref.ref(m.other))


@kind
def a_weak_dictionary(m):
    m.strong = Plain()
    m.held = weakref.WeakValueDictionary(a=m.strong)
    return (lambda self: self.held["a"].factor), lambda: setattr(m.strong, "factor", 3.0)
