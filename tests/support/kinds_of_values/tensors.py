"""Tensors in attributes, states of locks and loggers, circles of objects, operator's getters."""

from __future__ import annotations

import functools
import itertools
import logging
import operator
import queue
import threading

import numpy as np
import torch

from .containers import container
from .holders import KINDS, Plain, Slotted, kind

TENSOR = torch.tensor(1.0)


def tensor(read, change=lambda t: t.fill_(3.0)):
    def kind_of(m):
        m.held = torch.tensor(1.0)
        return read, lambda: change(m.held)

    return kind_of


KINDS |= {
    "item": tensor(lambda self: self.held.item()),
    "float_of_a_tensor": tensor(lambda self: float(self.held)),
    "tolist": tensor(lambda self: self.held.tolist()),
    "truth_of_a_tensor": tensor(lambda self: 3.0 if self.held > 2 else 1.0),
    "a_tensor_in_the_graph": tensor(lambda self: self.held),
    "data_of_a_tensor": tensor(lambda self: self.held.item(), lambda t: t.data.fill_(3.0)),
    "numpys_view_of_a_tensor": tensor(lambda self: self.held.item(), lambda t: t.numpy().fill(3.0)),
    "numpy_of_a_tensor": tensor(lambda self: float(self.held.numpy())),
    "equal": tensor(lambda self: 3.0 if torch.equal(self.held, torch.tensor(3.0)) else 1.0),
    "int_of_a_tensor": tensor(lambda self: float(int(self.held))),
    "sum_of_a_tensor": tensor(lambda self: (self.held * 2).sum().item() / 2),
    "any_of_a_tensor": tensor(lambda self: 3.0 if (self.held > 2).any() else 1.0),
    "a_slice_of_a_tensor": tensor(lambda self: float(self.held.reshape(1)[0])),
    "index_by_a_tensor": tensor(lambda self: [0.0, 1.0, 2.0, 3.0][self.held.long()]),
    "places_in_a_tensor": tensor(lambda self: 1.0 + 2 * len((self.held > 2).reshape(1).nonzero())),
    "array_of_a_tensor": tensor(lambda self: float(np.asarray(self.held))),
    "list_of_what_follows": tensor(lambda self: (self.held + 0).tolist()),
    "equal_to_what_follows": tensor(lambda self: 3.0 if torch.equal(self.held, torch.ones(()) * 3) else 1.0),
    "requires_grad": tensor(
        lambda self: 3.0 if self.held.requires_grad else 1.0, lambda t: t.requires_grad_()
    ),
    "version_of_a_tensor": tensor(lambda self: 1.0 + self.held._version, lambda t: t.add_(0)),
    "grad_of_a_tensor": tensor(
        lambda self: 1.0 if self.held.grad is None else 3.0, lambda t: setattr(t, "grad", torch.ones(()))
    ),
    "what_a_tensor_carries": tensor(
        lambda self: getattr(self.held, "factor", 1.0), lambda t: setattr(t, "factor", 3.0)
    ),
    "a_tensor_replaced": lambda m: (
        setattr(m, "held", torch.tensor(1.0))
        or (lambda self: self.held.item(), lambda: setattr(m, "held", torch.tensor(3.0)))
    ),
    "a_tensor_in_a_list": container(
        lambda: [torch.tensor(1.0)], lambda self: self.held[0].item(), lambda c: c[0].fill_(3.0)
    ),
    "a_global_tensor": lambda m: (
        TENSOR.fill_(1.0)
        and (
            lambda self: float(TENSOR.tolist()),  # pyright: ignore[reportArgumentType]
            lambda: TENSOR.fill_(3.0),
        )
    ),
    "an_iterator": container(
        lambda: itertools.chain([1.0] * 2, [3.0] * 9), lambda self: next(self.held), lambda c: None
    ),
    "a_tensor_that_is_another": lambda m: (
        setattr(m, "one", torch.tensor(1.0))
        or setattr(m, "two", m.one)
        or (lambda self: 1.0 if self.one is self.two else 3.0, lambda: setattr(m, "two", m.one.clone()))
    ),
}


@kind
def what_a_weight_carries(m):
    m.layer.weight.factor = 1.0

    def change():
        m.layer.weight.factor = 3.0

    return (lambda self: self.layer.weight.factor), change


@kind
def what_a_weight_carries_later(m):
    def change():
        m.layer.weight.factor = 3.0

    return (lambda self: getattr(self.layer.weight, "factor", 1.0)), change


@kind
def a_logger_s_level(m):
    log = logging.getLogger("a_log_of_a_user")
    log.setLevel(20)
    return (lambda self: 3.0 if log.isEnabledFor(10) else 1.0), lambda: log.setLevel(10)


@kind
def a_lock(m):
    m.held = threading.Lock()
    return (lambda self: 3.0 if self.held.locked() else 1.0), lambda: m.held.acquire()


@kind
def an_event(m):
    m.held = threading.Event()
    return (lambda self: 3.0 if self.held.is_set() else 1.0), lambda: m.held.set()


@kind
def a_queue(m):
    m.held = queue.SimpleQueue()
    return (lambda self: 1.0 + self.held.qsize()), lambda: m.held.put(1)


@kind
def a_loop_over_a_tensor(m):
    m.held = torch.tensor([True, False])
    return (lambda self: sum(1.0 for each in self.held if each)), lambda: m.held.fill_(True)


@kind
def a_mask_in_an_attribute(m):
    m.held = torch.tensor([True, False, True])
    return (lambda self: self.layer.bias[self.held].sum()), lambda: m.held.fill_(True)


@kind
def a_tensor_in_a_slot(m):
    m.held = Slotted()
    m.held.factor = torch.tensor([1.0, 2.0])

    def change():
        m.held.factor = torch.tensor([3.0, 2.0])

    return (lambda self: self.held.factor.max().item()), change


@kind
def in_a_circle(m):
    m.held = Plain()
    m.held.owner = m
    m.factor = 1.0

    def change():
        m.factor = 3.0

    return (lambda self: self.held.owner.factor), change


@kind
def in_a_function_that_knows_the_module(m):
    m.factor = torch.tensor(1.0)

    def change():
        m.factor = torch.tensor(3.0)

    return (lambda _self: m.factor.item()), change


def getter(read):
    """A number that a function written in C reads of the module."""

    def make(m):
        m.held = Plain()
        m.table = {"factor": 1.0}

        def change():
            m.held.factor = m.table["factor"] = 3.0

        return read, change

    return make


KINDS |= {
    "attrgetter": getter(lambda self: operator.attrgetter("held.factor")(self)),
    "attrgetter_of_two": getter(lambda self: operator.attrgetter("held.factor", "training")(self)[0]),
    "itemgetter": getter(lambda self: operator.itemgetter("factor")(self.table)),
    "itemgetter_and_attrgetter": getter(
        lambda self: operator.itemgetter("factor")(operator.attrgetter("table")(self))
    ),
    "methodcaller": getter(lambda self: operator.methodcaller("get", "factor", 2.0)(self.table)),
    "methodcaller_of_a_module": getter(
        lambda self: operator.methodcaller("told", scale=1.0)(HasMethod(self))
    ),
    "reduce_of_getattr": getter(lambda self: functools.reduce(getattr, ["held", "factor"], self)),
    "map_of_getattr": getter(lambda self: next(map(getattr, [self.held], ["factor"]))),
    "map_of_attrgetter": getter(lambda self: next(iter(map(operator.attrgetter("held.factor"), [self])))),
    "key_of_max": getter(lambda self: max([self], key=operator.attrgetter("held.factor")).held.factor),
    "partial_of_getattr": getter(lambda self: functools.partial(getattr, self.held)("factor")),
    "partial_of_getattr_of_a_module": getter(
        lambda self: functools.partial(operator.attrgetter("held.factor"), self)()
    ),
}


class HasMethod:
    def __init__(self, module):
        self.module = module

    def told(self, scale):
        return self.module.held.factor * scale


@kind
def gradient_of_a_buffer(m):
    m.register_buffer("scale", torch.ones(()))
    return (lambda self: 3.0 if self.scale.requires_grad else 1.0), lambda: m.scale.requires_grad_()
