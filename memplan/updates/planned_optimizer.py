"""The description of an optimizer whose steps can be planned, and the parts that update functions share.

An update function is `(weight, gradient, states…, lr, step, *, hyperparameters, clip)`. It updates one weight
in place, bit by bit as the optimizer's own step does. `step` counts from 1. `clip` multiplies the gradient
first, in a copy: whatever reads the gradient may be recomputed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..graphs.errors import InputError
from ..program.program import Setting, Target
from .elementwise import SINGLE, Elementwise, is_foreach

Group = Mapping[str, Any]
"""A parameter group of an optimizer."""

Settings = Callable[..., dict[str, Any]]
"""Returns for names of numbers keywords of an update: a `Setting` each, which every iteration reads anew."""

FIRST_NUMBER = 3
"""Settings before those of the groups: number of the update, norm to clip to, first batch or not."""


class Effort(NamedTuple):
    """Cost of an update, in units of the gradient's bytes.

    passes: how often the update reads or writes so many bytes.
    temporaries: tensors of that size that the update allocates.
    """

    passes: int
    temporaries: int


def _no_products(_shape: Sequence[int], _keywords: Mapping[str, Any]) -> int:
    return 0


class UpdateFunction(NamedTuple):
    """An update function with its cost.

    call: the function. A program's fingerprint has its `__name__`: another name makes graph files unusable.
    effort: the cost by the function's keywords.
    fused: whether it is one fused kernel of PyTorch.
    flops: of its products of matrices in bfloat16, by the weight's shape and the function's keywords.
    together: the function for several weights, `(members, lr, step, **keywords)`, by one kernel; a member is
        a weight, its gradient and its states. None if there is none.
    """

    call: Target
    effort: Callable[[Mapping[str, Any]], Effort]
    fused: bool = False
    flops: Callable[[Sequence[int], Mapping[str, Any]], int] = _no_products
    together: Callable[..., None] | None = None


class Form(NamedTuple):
    """Form of a state, where it is not the parameter's.

    shape: None for the parameter's, with its strides.
    dtype: None for the rule's.
    """

    shape: tuple[int, ...] | None = None
    dtype: torch.dtype | None = None


class Rule(NamedTuple):
    """Update rule of one parameter.

    target: the update function.
    states: names of the states, as the optimizer calls them.
    keywords: of the call, after weight, gradient, states, lr and step.
    lr: the group's learning rate.
    dtype: of the states, None for the parameter's.
    summed: dtype in which gradients are clipped and summed over batches, None for their own.
    forms: of the states that have another form than the parameter.
    """

    target: Target
    states: tuple[str, ...]
    keywords: Mapping[str, Any]
    lr: Setting
    dtype: torch.dtype | None = None
    summed: torch.dtype | None = None
    forms: Mapping[str, Form] = MappingProxyType({})


def state_like(weight: Tensor, rule: Rule, state: str) -> Tensor:
    """Return a new state of a weight, zero."""
    shape, dtype = rule.forms.get(state, Form())
    dtype = dtype or rule.dtype or weight.dtype
    if shape is None:
        return torch.zeros_like(weight, dtype=dtype)
    return torch.zeros(shape, dtype=dtype, device=weight.device)


def _as_it_is(_optimizer: torch.optim.Optimizer, group: Group) -> Group:
    return group


def _none(*_arguments: Any) -> dict[str, Any]:
    return {}


def _always(_weight: Tensor) -> bool:
    return True


def _no_tables() -> dict[str, tuple[str, Callable[[torch.device], Tensor]]]:
    return {}


def _never(_optimizer: torch.optim.Optimizer) -> bool:
    return False


@dataclass(frozen=True)
class PlannedOptimizer:
    """All that planned updates know of an optimizer: a file of `optimizers/` has one, named `OPTIMIZER`.

    title: name in messages.
    make: class that the command line makes, or a function: `make(parameters, **hyperparameters)`.
    hyperparameters: arguments of `make` that can be chosen there.
    numbers: of a group, read anew in each iteration; `lr` first. beta1 and beta2 are those of `betas`.
    choose: for a parameter of a group the update function, the names of its states, and the keywords but for
    `maximize`.
    functions: all update functions.
    forms: of the states of a parameter that have another form than it.
    options: a group with the options that the class keeps elsewhere, and None as numbers.
    counts: whether it counts the steps of each parameter, in `state["step"]`.
    counts_in_int: whether that count is Python's int, not a tensor.
    products: per state that is a running product of numbers, one of each parameter, the next factor by group
    and step. It begins at 1. Its name is in `numbers`, which has it after this step.
    tables: constant tensors that the optimizer keeps with states, one for all parameters: by name the state
    that it belongs to, and the function that returns it for a device.
    switches: options of a group on which the operations of an update depend.
    constants: options of a group whose values are part of a plan.
    zeros: numbers of which being zero or not is fixed: a zero removes operations.
    refused: options that no plan can have; an optimizer that has one raises InputError.
    unplanned: whether an optimizer has options that the update functions lack: it steps after the plan then,
    as optimizers do that have no description.
    classes: other packages' classes that compute the same, by qualified name; see `is_planned`.
    foreach_copies: number of copies of the weights that a step of the class's own defaults holds on CUDA.
    by_element: whether each element is updated by itself, so that ranks can update shares of a weight.
    probes: shapes of the weights on which another package's class is tried.
    package: module of another package that `make` needs.
    takes: whether `make` takes a parameter; on the command line AdamW updates those that it does not take.
    """

    title: str
    make: Callable[..., torch.optim.Optimizer]
    hyperparameters: tuple[str, ...]
    numbers: tuple[str, ...]
    choose: Callable[[Group, Settings, Tensor], tuple[Target, tuple[str, ...], dict[str, Any]]]
    functions: tuple[UpdateFunction, ...]
    forms: Callable[[Group, Tensor], Mapping[str, Form]] = _none
    options: Callable[[torch.optim.Optimizer, Group], Group] = _as_it_is
    counts: bool = False
    counts_in_int: bool = False
    products: Mapping[str, Callable[[Group, float], float]] = field(
        default_factory=dict[str, Callable[[Group, float], float]]
    )
    tables: Mapping[str, tuple[str, Callable[[torch.device], Tensor]]] = field(default_factory=_no_tables)
    constants: tuple[str, ...] = ()
    switches: tuple[str, ...] = ()
    zeros: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    unplanned: Callable[[torch.optim.Optimizer], bool] = _never
    classes: tuple[str, ...] = ()
    foreach_copies: int = 0
    by_element: bool = True
    probes: tuple[tuple[int, ...], ...] = ((67,),)
    package: str = ""
    takes: Callable[[Tensor], bool] = _always

    @property
    def has_fused(self) -> bool:
        """Tell whether some update function is a fused kernel."""
        return any(function.fused for function in self.functions)

    def values(self, group: Group) -> list[float]:
        """Return a group's numbers in their order; 0 for one that the group lacks.

        Raises InputError for a number whose arithmetic is not Python's: PyTorch computes with it as it is.
        """
        betas = dict(zip(("beta1", "beta2"), group.get("betas", ()), strict=False))
        given = {**group, **betas}
        return [_number(name, given.get(name, 0.0)) for name in self.numbers]

    def rule(self, group: Group, first: int, weight: Tensor) -> Rule:
        """Return how a parameter of a group is updated.

        group: of `options`. first: place of the group's first number among the settings.
        """
        examples = dict(zip(self.numbers, self.values(group), strict=True))

        def settings(*names: str) -> dict[str, Any]:
            # A number that is zero stays a constant: its operations are left out.
            return {
                name: 0.0
                if name == "weight_decay" and not examples[name]
                else self._setting(first, name, examples)
                for name in names
            }

        target, states, keywords = self.choose(group, settings, weight)
        if group.get("maximize"):
            keywords["maximize"] = True
        if is_foreach(group):
            keywords["foreach"] = True
        # Not the group's rate, which schedules change: a setting's example is in fingerprints.
        rate, forms = self._setting(first, "lr", {"lr": 1e-3}), self.forms(group, weight)
        return Rule(target, states, keywords, rate, forms=forms)

    def _setting(self, first: int, name: str, examples: Mapping[str, float]) -> Setting:
        return Setting(first + self.numbers.index(name), examples[name])


def _number(name: str, number: Any) -> float:
    """Return a number of a group as a float; of a tensor, which is a rate, its value."""
    if not (type(number) in _NUMBERS or (name == "lr" and isinstance(number, Tensor))):
        kind = type(number)
        raise InputError(
            f"{name} of the optimizer is a {kind.__module__}.{kind.__qualname__}, which rounds otherwise "
            f"than the numbers of a plan: give float({name})"
        )
    return float(number)


_NUMBERS = frozenset({float, int, bool, np.float64})
"""Types of numbers that are computed with as Python's floats are."""


def has_complex_weights(optimizer: torch.optim.Optimizer) -> bool:
    """Tell whether a parameter of the optimizer is complex."""
    return any(weight.is_complex() for group in optimizer.param_groups for weight in group["params"])


def rate_as_given(lr: float, dtype: torch.dtype | None) -> Any:
    """Return a learning rate as the optimizer computes with it.

    dtype: of a rate that is a tensor, whose products are rounded to it; None for a number.
    """
    # On the CPU and without dimensions it takes part as a number does, on whichever device the weight is.
    return lr if dtype is None else torch.tensor(lr, dtype=dtype, device="cpu")


def constant(passes: int, temporaries: int = 0) -> Callable[[Mapping[str, Any]], Effort]:
    """Return an effort that depends on clipping alone, like a fused kernel's: it touches each tensor once."""

    def effort(keywords: Mapping[str, Any]) -> Effort:
        clip = 2 * ("clip" in keywords)
        return Effort(passes + clip, max(temporaries, int(clip > 0)))

    return effort


def changed_gradient(
    weight: Tensor,
    gradient: Tensor,
    weight_decay: float,
    maximize: bool,
    clip: Tensor | None,
    kernels: Elementwise = SINGLE,
) -> Tensor:
    """Return the gradient clipped, negated to maximize, and with the weight decay added, all in a copy."""
    # Whether the gradient is a copy by now, which may be changed in place.
    own = clip is not None
    gradient = clipped(gradient, clip)
    if maximize and own:
        kernels.neg_(gradient)
    elif maximize:
        gradient, own = kernels.neg(gradient), True
    if weight_decay and own:
        kernels.add_(gradient, weight, alpha=weight_decay)
    elif weight_decay:
        gradient = kernels.add(gradient, weight, alpha=weight_decay)
    return gradient


def clipped(gradient: Tensor, clip: Tensor | None) -> Tensor:
    """Return the gradient times `clip`, or the gradient itself without clipping."""
    return gradient if clip is None else gradient.mul(clip)
