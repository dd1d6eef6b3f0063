"""The module's own tensors if code holds them itself, past the module.

While tracing, the module has fake tensors instead of its parameters and buffers. Code that reads those from
elsewhere (a penalty's list of parameters, Keras' variables) has the real ones: each call on them is made on
the fake ones, else no gradient would reach the parameters.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

from ..torch_support.torch_autograd import function_arguments_replaced
from ..torch_support.torch_trees import tree_leaves, tree_map


@contextmanager
def given_replaced(pairs: Iterable[tuple[Tensor, Tensor]]) -> Generator[None]:
    """Replace real tensors by their fakes in calls of torch's functions and of autograd Functions.

    pairs: real tensor, fake.
    """
    mode = _Given(pairs)
    with function_arguments_replaced(mode.replaced), mode:
        yield


class _Given(TorchFunctionMode):
    def __init__(self, pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
        super().__init__()
        # With the real one, so that its identity stays its own.
        self._stand_ins = {id(real): (real, fake) for real, fake in pairs if real is not fake}

    def replaced(self, arguments: Any) -> Any:
        if not any(id(leaf) in self._stand_ins for leaf in tree_leaves(arguments)):
            return arguments
        return tree_map(self._replaced, arguments)

    def _replaced(self, leaf: Any) -> Any:
        return self._stand_ins.get(id(leaf), (leaf, leaf))[1]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = self.replaced((args, kwargs or {}))
        for kind in (kind for kind in types if not issubclass(kind, Tensor)):
            # An object that stands for a tensor (Keras' variable) takes it out itself, and repeats the
            # call: without this mode around, which Python has left by now, it would call on the real one.
            with self:
                made = kind.__torch_function__(func, types, args, kwargs)
            if made is not NotImplemented:
                return made
        return func(*args, **kwargs)
