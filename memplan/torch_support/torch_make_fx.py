"""PyTorch's `make_fx`, which notes most calls of a trace in fewer steps.

`make_fx` is made for every kind of call: subclasses of tensors, symbolic sizes, operators that are taken
apart, constants. That takes three quarters of a trace on fake tensors. An ATen operator on tensors that the
trace has made, of known sizes, needs only a node and the forms of its results. All other calls go the usual
way. Graphs are the same, node by node, but for `tensor_meta`, which repeats what `val` says.

What it takes of torch that is not promised was so in 2.10.0, 2.11.0, 2.13.0 and 2.14.1.
"""

# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import cache, wraps
from inspect import signature
from types import MethodType
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload
from torch._subclasses.fake_impls import fast_detach
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx._lazy_graph_module import _use_lazy_graph_module
from torch.fx.experimental import proxy_tensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from .torch_operators import can_decompose

__all__ = [
    # The trace in progress, whose new nodes are marked.
    "get_proxy_mode",
    # Traces to ATen operators.
    "make_fx",
]


def make_fx(function: Callable[..., Any], **options: Any) -> Callable[..., fx.GraphModule]:
    """Return what traces the function to ATen operators, as torch's `make_fx` does with these options.

    A graph's Python code is written only if the graph is called, which most are not: torch keeps the source
    of all that it writes forever.
    """

    @wraps(function)
    def noted(*tensors: Any) -> Any:
        mode: Any = get_proxy_mode()
        if not options:
            # On the object, not by a class: higher-order operators choose their rule by the mode's class.
            mode.__torch_dispatch__ = MethodType(_ShortCalls(mode), mode)
        return function(*tensors)

    def trace(*examples: Any) -> fx.GraphModule:
        with _use_lazy_graph_module(True):
            return proxy_tensor.make_fx(noted, **_without_records(), **options)(*examples)

    return trace


@cache
def _without_records() -> dict[str, bool]:
    """Return the option of `make_fx` not to count calls of torch's functions, if it has it."""
    name = "_disable_torch_fn_metadata_mode"
    return {name: True} if name in signature(proxy_tensor.make_fx).parameters else {}


_AS_THEY_ARE = {
    int,
    float,
    bool,
    str,
    type(None),
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
}
"""Types of arguments that stand in a node as they are."""


def _taken_apart(mode: Any) -> Any:
    """Return the operators that this trace takes apart. PyTorch 2.10 and 2.11 have one table for all."""
    table = getattr(mode, "decomposition_table", None)
    return proxy_tensor.CURRENT_DECOMPOSITION_TABLE if table is None else table


class _UnusualError(Exception):
    """Error: an argument is neither a number or name nor a tensor that the trace has made."""


class _ShortCalls:
    """Function that notes a call, as a method of the mode instead of its own."""

    def __init__(self, mode: Any) -> None:
        self._usual, self._tracer = mode.__torch_dispatch__, mode.tracer

    def __call__(self, mode: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if (name := _short_name(func)) is None or func in _taken_apart(mode):
            return self._usual(func, types, args, kwargs)
        try:
            nodes = tuple(map(self._argument, args))
            named = {key: self._argument(argument) for key, argument in kwargs.items()}
        except _UnusualError:
            return self._usual(func, types, args, kwargs)
        node = self._tracer.graph.create_node("call_function", func, nodes, named, name)
        made = func(*args, **kwargs)
        self._note(made, node)
        return made

    def _argument(self, argument: Any) -> Any:
        kind = type(argument)
        if kind in _AS_THEY_ARE:
            return argument
        if kind is list or kind is tuple:
            return kind(map(self._argument, argument))
        # A constant that PyTorch knows the values of goes the usual way, which computes with them.
        known = self._tracer.tensor_tracker.get(argument) if kind is FakeTensor else None
        if known is None or known.constant is not None:
            raise _UnusualError
        return known.proxy.node

    def _note(self, made: Any, node: fx.Node) -> None:
        """Note what a call has returned, which later calls take."""
        if _is_of_known_size(made):
            self._keep(made, node, _form(made))
        elif type(made) in (tuple, list) and all(each is None or _is_of_known_size(each) for each in made):
            forms = [None if each is None else _form(each) for each in made]
            node.meta["val"] = type(made)(forms)
            create = self._tracer.graph.create_node
            for index, (each, form) in enumerate(zip(made, forms, strict=True)):
                part = create("call_function", operator.getitem, (node, index), {}, "getitem")
                if each is not None:
                    self._keep(each, part, form)
        else:
            proxy = fx.Proxy(node, self._tracer)
            proxy_tensor.track_tensor_tree(made, proxy, constant=None, tracer=self._tracer)

    def _keep(self, tensor: FakeTensor, node: fx.Node, form: Any) -> None:
        node.meta["val"] = form
        proxy = fx.Proxy(node, self._tracer)
        self._tracer.tensor_tracker[tensor] = proxy_tensor._ProxyTensor(proxy, None)


@cache
def _short_name(func: Any) -> str | None:
    """Return the name of an operator's nodes; None for one that `make_fx` treats in a way of its own."""
    if type(func) is not OpOverload or func.namespace != "aten" or func in _UNUSUAL or can_decompose(func):
        return None
    if torch.Tag.data_dependent_output in func.tags:
        return None
    return fx.Graph._target_to_str(fx.Graph(), func.overloadpacket.__name__)


_UNUSUAL = {
    torch.ops.aten.is_nonzero.default,
    torch.ops.aten.lift_fresh.default,
    torch.ops.aten.lift_fresh_copy.default,
}


def _is_of_known_size(made: Any) -> bool:
    return type(made) is FakeTensor and made.fake_mode.shape_env is None


def _form(tensor: FakeTensor) -> FakeTensor:
    """Return a tensor in the same memory, which stays as it is if the code gives the other another form."""
    return fast_detach(tensor.fake_mode, tensor)
