"""Attributes: of objects, classes and modules, by all ways to read them."""

from __future__ import annotations

import operator
from typing import Any

from .holders import (
    KINDS,
    TABLE,
    Called,
    Child,
    Compared,
    Length,
    Meta,
    OfClass,
    OtherCompared,
    Plain,
    Single,
    WithDescriptor,
    WithMeta,
    WithProperty,
    kind,
)


@kind
def attribute(m):
    m.factor = 1.0
    return (lambda self: self.factor), lambda: setattr(m, "factor", 3.0)


@kind
def private_attribute(m):
    m._factor = 1.0
    return (lambda self: self._factor), lambda: setattr(m, "_factor", 3.0)


@kind
def attribute_by_getattr(m):
    m.factor, m.which = 1.0, "factor"
    return (lambda self: getattr(self, self.which)), lambda: setattr(m, "factor", 3.0)


@kind
def which_attribute(m):
    m.factor, m.other, m.which = 1.0, 3.0, "factor"
    return (lambda self: getattr(self, self.which)), lambda: setattr(m, "which", "other")


@kind
def attribute_with_default(m):
    return (lambda self: getattr(self, "factor", 1.0)), lambda: setattr(m, "factor", 3.0)


@kind
def attribute_that_hasattr_asks_for(m):
    return (lambda self: 3.0 if hasattr(self, "large") else 1.0), lambda: setattr(m, "large", None)


@kind
def attribute_that_is_tried(m):
    def read(self):
        try:
            return self.factor
        except AttributeError:
            return 1.0

    return read, lambda: setattr(m, "factor", 3.0)


@kind
def attribute_deleted(m):
    m.small = None
    return (lambda self: 1.0 if hasattr(self, "small") else 3.0), lambda: delattr(m, "small")


@kind
def vars_of(m):
    m.factor = 1.0
    return (lambda self: vars(self)["factor"]), lambda: setattr(m, "factor", 3.0)


@kind
def dict_of(m):
    m.factor = 1.0
    return (lambda self: self.__dict__["factor"]), lambda: setattr(m, "factor", 3.0)


@kind
def dict_of_get(m):
    m.held = Plain()
    return (lambda self: self.held.__dict__.get("factor")), lambda: setattr(m.held, "factor", 3.0)


@kind
def attrgetter(m):
    m.held = Plain()
    get = operator.attrgetter("factor")
    return (lambda self: get(self.held)), lambda: setattr(m.held, "factor", 3.0)


@kind
def methodcaller(m):
    m.held = Called()
    call = operator.methodcaller("__call__")
    return (lambda self: call(self.held)), lambda: setattr(m.held, "factor", 3.0)


@kind
def a_property(m):
    m.held = WithProperty()
    return (lambda self: self.held.factor), lambda: m.held._inner.update(factor=3.0)


@kind
def a_descriptor(m):
    m.held = WithDescriptor()
    before = WithDescriptor.__dict__["factor"]
    before.value = 1.0
    return (lambda self: self.held.factor), lambda: setattr(before, "value", 3.0)


@kind
def a_class_attribute(m):
    OfClass.factor = 1.0
    m.held = Child()
    return (lambda self: self.held.factor), lambda: setattr(OfClass, "factor", 3.0)


@kind
def a_class_attribute_shadowed(m):
    OfClass.factor = 1.0
    m.held = Child()
    return (lambda self: self.held.factor), lambda: setattr(m.held, "factor", 3.0)


@kind
def a_class_attribute_of_a_class(m):
    OfClass.factor = 1.0
    return (lambda self: Child.factor), lambda: setattr(OfClass, "factor", 3.0)


@kind
def a_class_attribute_set_later(m):
    if "factor" in vars(Child):
        del Child.factor
    OfClass.factor = 1.0

    def change():
        Child.factor = 3.0

    return (lambda self: Child().factor), change


@kind
def a_classmethod(m):
    OfClass.factor = 1.0
    return (lambda self: OfClass.read()), lambda: setattr(OfClass, "factor", 3.0)


@kind
def a_staticmethod(m):
    TABLE["factor"] = 1.0
    return (lambda self: OfClass.of_global()), lambda: TABLE.update(factor=3.0)


@kind
def a_metaclass(m):
    Meta.factor = 1.0
    return (lambda self: WithMeta.factor), lambda: setattr(Meta, "factor", 3.0)


@kind
def a_singleton(m):
    Single.instance = None
    Single.get()
    return (lambda self: Single.get().factor), lambda: setattr(Single.instance, "factor", 3.0)


@kind
def another_singleton(m):
    Single.instance = Single()

    def change():
        Single.instance = Single()
        Single.instance.factor = 3.0

    return (lambda self: Single.get().factor), change


@kind
def a_method_replaced(m):
    m.held = Called()
    return (lambda self: self.held()), lambda: setattr(Called, "__call__", lambda self: 3.0 * self.factor)


@kind
def a_method_of_the_class_replaced(m):
    class Local:
        def factor(self):
            return 1.0

    m.held = Local()
    return (lambda self: self.held.factor()), lambda: setattr(Local, "factor", lambda self: 3.0)


@kind
def an_object_of_another_class(m):
    m.held = Compared()
    return (
        (lambda self: 3.0 if isinstance(self.held, OtherCompared) else 1.0),
        lambda: setattr(m, "held", OtherCompared()),
    )


@kind
def the_class_of_an_object(m):
    m.held = Compared()
    return (
        (lambda self: 3.0 if isinstance(self.held, OtherCompared) else 1.0),
        lambda: setattr(m.held, "__class__", OtherCompared),
    )


for operation, text in {
    "equality": "3.0 if self.held == 3 else 1.0",
    "truth": "3.0 if self.held else 1.0",
    "membership": "3.0 if 2 in self.held else 1.0",
    "iteration": "[float(each) for each in self.held][0]",
    "conversion": "float(self.held)",
    "items": "float(self.held[0])",
    "index": "float(operator.index(self.held))",
    "product": "self.held * 1.0",
    "hash": "float(hash(self.held))",
    "unpacking": "float([*self.held][0])",
}.items():

    def made(m, text=text):
        m.held = Compared()
        names: dict[str, Any] = {"operator": operator}
        exec(f"def read(self):\n    return {text}\n", names)  # code without a source too
        return names["read"], lambda: setattr(m.held, "n", 3)

    KINDS[f"own_{operation}"] = made


@kind
def own_length(m):
    m.held = Length()
    return (lambda self: float(len(self.held))), lambda: setattr(m.held, "n", 3)


@kind
def own_equality_with_a_source(m):
    m.held = Compared()
    return (lambda self: 3.0 if self.held == 3 else 1.0), lambda: setattr(m.held, "n", 3)


@kind
def own_iteration_with_a_source(m):
    m.held = Compared()

    def read(self):
        for each in self.held:
            return float(each)
        return None

    return read, lambda: setattr(m.held, "n", 3)
