"""Iterations in a row on fake tensors: the state that one leaves may make the next compute something else.

A cache is filled by the first iteration and gives the same to all; a hidden state, a mode that switches or a
batch that is kept for the next one do not. An iteration that reads what it changes is traced three times,
each time with the state that the one before has left: the second has another batch than the first, the third
has the second's. If all three compute the same expressions (expressions.py), and the state that is read moves
no further, the plan of the first is right for every one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..guards.reads.carried import Carried, StateError
from ..torch_support.torch_fakes import FakeTensor
from ..torch_support.torch_make_fx import make_fx
from ..torch_support.unsupported import TraceError
from .expressions import Expressions
from .host_part import Named


def refuse_what_moves(
    carried: Sequence[Carried],
    residents: Named,
    inputs: Named,
    run: Callable[[Named], tuple[list[Tensor], str]],
) -> None:
    """Raise TraceError if iterations in a row compute different things. The fake mode is on.

    carried: state that the iteration reads and changes.
    residents, inputs: fake tensors.
    run: one iteration with these inputs; returns its results, and all else that it returns as text.
    """
    expressions = Expressions()
    first: Any = None
    left: list[list[Any]] = []
    batch: Named = inputs
    for iteration in range(3):
        if iteration < 2:
            batch = {name: another(tensor) for name, tensor in inputs.items()}
        given = [(n, t, isinstance(t, nn.Parameter) and t.requires_grad) for n, t in residents.items()]
        expressions.begin(given, batch.items(), same=iteration == 2)
        try:
            computed = _expressions_of(expressions, residents, batch, run)
        except TraceError:
            raise
        except Exception as error:
            raise StateError(carried[0].refusal) from error
        left.append([each.content() for each in carried])
        moves = (
            [each for each, then, now in zip(carried, *left[-2:], strict=True) if then != now]
            if iteration
            else []
        )
        if iteration and (moves or computed != first):
            raise StateError((moves or carried)[0].refusal)
        first = computed if first is None else first


def _expressions_of(
    expressions: Expressions,
    residents: Named,
    batch: Named,
    run: Callable[[Named], tuple[list[Tensor], str]],
) -> Any:
    """Return the expressions of an iteration's results and of what it leaves in residents, and what else
    it returns.
    """
    found: list[Any] = []

    def iterate(*_tensors: Tensor) -> list[Tensor]:
        with expressions:
            results, other = run(batch)
        found[:] = [expressions.of(each) for each in (*results, *residents.values())]
        found.append(other)
        return results

    make_fx(iterate)(*residents.values(), *batch.values())
    return found


def another(tensor: Tensor) -> Tensor:
    """Create a tensor of the same form, another object in separate memory."""
    if type(tensor) is not FakeTensor:
        return tensor.detach().clone()
    form: Any = {"dtype": tensor.dtype, "device": tensor.device}
    return torch.empty_strided(tuple(tensor.shape), tensor.stride(), **form)
