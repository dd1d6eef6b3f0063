"""Gradients summed over several batches before one update: the sum of each is a state in addition to
the optimizer's own, in the gradient's dtype.

The first batch's gradient is copied, as `.grad` begins: no sum need be made zero, and the bits are those of
`.grad`.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..model.accumulated import SUM
from ..program.program import Operation, Program, Setting
from ..torch_support.torch_optimizers import kernel_for_lists
from .planned_optimizer import Rule
from .rules import RULES

FIRST = Setting(2, 0.0)
"""The third of an iteration's settings: whether the batch is the first of its update."""


def add(total: Tensor, gradient: Tensor, first: float) -> None:
    if first:
        total.copy_(gradient)
    else:
        total.add_(gradient)


def add_in_bucket(first: float, *given: tuple[Tensor, Tensor]) -> None:
    """Add gradients to their sums, by one kernel. given: per weight its sum and its gradient."""
    totals, gradients = map(list, zip(*given, strict=True))
    kernel_for_lists("copy_" if first else "add_")(totals, gradients)


def on_sum(weight: Tensor, gradient: Tensor, *rest: Any, on: str, **hyperparameters: Any) -> None:
    """Run the update of an update's last batch: a rule by its name, on the sum with this gradient added.

    rest: as the rule's, the sum before the step's numbers.
    """
    *states, total, lr, step = rest
    # In the order of the batches, as `.grad` adds: another order rounds otherwise.
    RULES[on](weight, total.add_(gradient), *states, lr, step, **hyperparameters)


def with_sum(rule: Rule) -> Rule:
    keywords = {"on": rule.target.__name__, **rule.keywords}
    return rule._replace(target=on_sum, states=(*rule.states, SUM), keywords=keywords)


def sums_of(program: Program) -> set[int]:
    """Return the storages of the sums."""
    return {program.values[value].storage for (_, state), value in program.states.items() if state == SUM}


def adds_up(operation: Operation) -> bool:
    return operation.call.target in (add, add_in_bucket)
