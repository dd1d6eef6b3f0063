"""The module from which each traced node comes, forward and backward, by the public hooks of both."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import takewhile
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from ..torch_support.torch_make_fx import get_proxy_mode
from ..torch_support.unsupported import TraceError, note_layer

MARK = "memplan_mark"

_RUNS_ITS_OWN_BACKWARD = {"CheckpointFunctionBackward"}
OWN_RECOMPUTATION = (
    "the model changes or recomputes activations its own way (saved_tensors_hooks, checkpoints that are not "
    "torch's): switch that off, the schedule decides it"
)


class Mark(NamedTuple):
    layer: str | None
    backward: bool


class Marks:
    """The current mark, and the nodes that carry one already."""

    def __init__(self, module: nn.Module) -> None:
        self._paths = {part: path or None for path, part in module.named_modules()}
        self._owner: dict[Any, str | None] = {}
        self._stack: list[str | None] = [None]
        self._current = Mark(None, False)

    def change(self, mark: Mark) -> None:
        """Give the nodes traced since the last change their mark; `mark` is for those that follow."""
        stamp(self._current)
        self._current = mark

    def finish(self) -> None:
        stamp(self._current)

    def leaves(self) -> Iterator[tuple[Tensor, Any]]:
        """Yield the leaves that the loss follows from, each with the autograd node that reads it."""
        for node in self._owner:
            for following, _index in node.next_functions:
                if (leaf := getattr(following, "variable", None)) is not None:
                    yield leaf, node

    @contextmanager
    def forward(self) -> Generator[None]:
        def enter(module: nn.Module, _inputs: object) -> None:
            if module in self._paths:
                self._stack.append(self._paths[module])
                self.change(Mark(self._stack[-1], False))

        def leave(module: nn.Module, _inputs: object, output: object) -> None:
            if module in self._paths:
                self._claim(output, self._stack.pop())
                self.change(Mark(self._stack[-1], False))

        hooks = (register_module_forward_pre_hook(enter), register_module_forward_hook(leave))
        try:
            yield
        except Exception as error:
            note_layer(error, self._described(self._stack[-1]))
            raise
        finally:
            for hook in hooks:
                hook.remove()

    def _described(self, layer: str | None) -> str:
        kind = next(type(part).__name__ for part, path in self._paths.items() if path == layer)
        return f"{'the module' if layer is None else f'layer {layer}'} ({kind})"

    @contextmanager
    def backward(self, ends: Sequence[Tensor]) -> Generator[None]:
        """Assign nodes to backward inside the context; hooks change the layer as it proceeds.

        ends: the tensors that are differentiated.
        """
        self._claim(ends, None)
        # A node may outlive the trace: that of a leaf lives as long as the leaf.
        hooks = [
            node.register_prehook(partial(self._enter_backward, Mark(layer, True)))
            for node, layer in self._owner.items()
        ]
        self.change(Mark(None, True))
        try:
            yield
        except Exception as error:
            note_layer(error, self._described(self._current.layer))
            raise
        finally:
            for hook in hooks:
                hook.remove()

    def _enter_backward(self, mark: Mark, _gradients: object) -> None:
        self.change(mark)

    def _claim(self, output: object, layer: str | None) -> None:
        open_nodes = [tensor.grad_fn for tensor in _tensors(output) if tensor.grad_fn is not None]
        while open_nodes:
            node = open_nodes.pop()
            if node.name() in _RUNS_ITS_OWN_BACKWARD:
                raise TraceError(OWN_RECOMPUTATION)
            if node not in self._owner:
                self._owner[node] = layer
                open_nodes.extend(following for following, _index in node.next_functions if following)


def stamp(mark: Mark | None) -> None:
    """Mark the traced nodes that have no mark yet."""
    for node in new_nodes():
        node.meta[MARK] = mark


def new_nodes() -> Iterator[fx.Node]:
    """Return the traced nodes that have no mark yet, the last first."""
    return takewhile(lambda node: MARK not in node.meta, reversed(traced_graph().nodes))


def traced_graph() -> fx.Graph:
    """Return the graph of the trace in progress."""
    mode: Any = get_proxy_mode()
    return mode.tracer.graph


def _tensors(output: object) -> Iterator[Tensor]:
    if isinstance(output, torch.Tensor):
        yield output
    elif isinstance(output, Mapping):
        for part in output.values():
            yield from _tensors(part)
    elif isinstance(output, tuple | list):
        for part in output:
            yield from _tensors(part)
