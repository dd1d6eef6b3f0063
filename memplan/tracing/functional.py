"""A traced graph without in-place operations: the second pass of tracing.

PyTorch's functionalisation rewrites what operators declare; batch norms need their own form
(devices/calls/batch_norm.py). A graph that changes nothing in place but dropouts' new masks needs no second
pass, which takes a third of a trace: devices/calls/fused.py makes one operation of each mask.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from ..devices.calls.batch_norm import FUNCTIONAL, batch_norm
from ..devices.calls.fused import dropout_masks
from ..devices.calls.in_layout import changes_first, in_layout, loses_layout, splits
from ..torch_support.below_autograd import without_autocast
from ..torch_support.torch_autograd import change_functional, from_functional, functionalising, to_functional
from ..torch_support.torch_make_fx import make_fx
from ..torch_support.torch_operators import OpOverload, schema_of
from ..torch_support.unsupported import TraceError
from .generators import inherit_generator
from .layers import MARK, stamp

CHANGED = (
    "a view of a tensor {} from outside is changed in place, which is no buffer: make it one "
    "(register_buffer), so that its value persists across iterations"
)


def functional_graph(
    graph: fx.GraphModule,
    examples: Sequence[Tensor],
    given: Sequence[Tensor],
    fake: Callable[[Tensor], Tensor],
) -> fx.GraphModule:
    """Return the graph with changes of its inputs as `copy_` at its end, and no other in-place operation.

    examples: the inputs to trace with.
    given: the real tensors that they replace.
    fake: makes the fake of a constant, which comes in as an input too, so that views of it lie in its memory.
    """
    if _is_functional(graph):
        return graph
    constants = _constants(graph, given)
    fakes = list(map(fake, constants))
    run = _Rewriting(graph, [*given, *constants]).run_flat

    def functionalised(*tensors: Tensor) -> Any:
        with functionalising():
            changed = [to_functional(tensor) for tensor in tensors]
            results = [from_functional(result) for result in run(*changed)]
            changed = [from_functional(tensor) for tensor in changed]
        for number, (tensor, new) in enumerate(zip(tensors, changed, strict=True)):
            if new is not tensor and number >= len(examples):
                raise TraceError(CHANGED.format(list(tensor.shape)))
            if new is not tensor:
                tensor.copy_(new)
        return results

    # Backward and casts are nodes of the first trace already.
    with torch.no_grad(), without_autocast(examples[0].device):
        made = make_fx(functionalised)(*(tensor.detach() for tensor in (*examples, *fakes)))
    _put_back(made, constants)
    return made


def _is_functional(graph: fx.GraphModule) -> bool:
    """Tell whether the graph changes nothing in place but dropouts' masks, and holds no constants.

    Views of a constant lie in its memory only after the second pass.
    """
    masks = {node for scaled, *others in dropout_masks(graph.graph) for node in (scaled, *others)}
    return not any(
        node.op == "get_attr" or (node.op == "call_function" and node not in masks and _changes(node.target))
        for node in graph.graph.nodes
    )


def _changes(target: Any) -> bool:
    """Tell whether an operator may change its arguments; what is no operator of ATen's kind is taken to."""
    if target is operator.getitem:
        return False
    return not isinstance(target, OpOverload) or schema_of(target).is_mutable or target in FUNCTIONAL


def _constants(graph: fx.GraphModule, given: Sequence[Tensor]) -> list[Tensor]:
    """Return the tensors that the model's code holds itself."""
    held = (getattr(graph, node.target) for node in graph.graph.find_nodes(op="get_attr"))
    apart = {id(tensor) for tensor in given}
    return list({id(tensor): tensor for tensor in held if id(tensor) not in apart}.values())


def _put_back(graph: fx.GraphModule, constants: Sequence[Tensor]) -> None:
    """Replace the last inputs by the constants."""
    placeholders = graph.graph.find_nodes(op="placeholder")
    for number, constant in enumerate(constants):
        # Negative: the constants are the last of the inputs.
        old = placeholders[number - len(constants)]
        name = f"constant{number}"
        graph.register_buffer(name, constant)
        with graph.graph.inserting_before(old):
            new = graph.graph.get_attr(name)
        new.meta = old.meta
        old.replace_all_uses_with(new)
        graph.graph.erase_node(old)


class _Rewriting(fx.Interpreter):
    """Interpreter that runs a graph node by node; new nodes inherit their node's mark."""

    def __init__(self, graph: fx.GraphModule, given: Sequence[Tensor]) -> None:
        super().__init__(graph)
        self._position = {id(tensor): index for index, tensor in enumerate(given)}
        self._inputs: tuple[Tensor, ...] = ()
        self._parts: dict[int, Tensor] = {}

    def run_flat(self, *tensors: Tensor) -> Any:
        self._inputs = tensors
        # Inputs and outputs are flat here; the graph's own pytree is the first trace's.
        return self.run(*tensors, enable_io_processing=False)

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        inherit_generator(n)
        stamp(n.meta.get(MARK))
        return result

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Return a tensor that the model's code holds itself; if it is one of the inputs, return that
        input.
        """
        tensor: Tensor = self.fetch_attr(target)
        position = self._position.get(id(tensor))
        return tensor if position is None else self._inputs[position]

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if target in FUNCTIONAL:
            return batch_norm(target, args)
        if changes_first(target, args) and (id(args[0]) in self._parts or loses_layout(target, args, kwargs)):
            return change_functional(args[0], in_layout(target, args)(*args, **kwargs))
        made = super().call_function(target, args, kwargs)
        if splits(target):
            # The parts are held with their ids, which others would get otherwise.
            self._parts.update((id(part), part) for part in made)
        return made
