"""Optimizers whose steps can be planned: `torch.optim.AdamW` and `torch.optim.SGD`.

Choice   what a command line or a graph's `source` says; makes the optimizer of a module.
rules    what a module's optimizer does to each parameter.
numbers  of its groups, which each iteration takes as they are then: `Settings` of the program.
fixed    what of a group a plan holds for.
"""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any, NamedTuple

import torch
from torch import nn

from ...graphs.errors import InputError
from ...graphs.files.fields import check_fields, mapping
from ...graphs.transformations.updates import STATES, When
from ..model.iteration import Iteration, Updates
from ..program.program import Setting, Target
from . import rules as update_rules


@dataclass(frozen=True)
class Choice:
    """name: adamw or sgd. update: when. The rest as in PyTorch; None: PyTorch's default."""

    name: str
    update: When = "in-backward"
    lr: float | None = None
    weight_decay: float | None = None
    momentum: float | None = None
    betas: tuple[float, float] | None = None
    eps: float | None = None

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """Raises InputError for a hyperparameter that PyTorch refuses or the optimizer has not."""
        given = {k: v for k, v in asdict(self).items() if v is not None and k not in ("name", "update")}
        make = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}.get(self.name)
        if make is None:
            raise InputError(f"unknown optimizer {self.name!r}: known are adamw, sgd")
        if foreign := given.keys() & ({"momentum"} if self.name == "adamw" else {"betas", "eps"}):
            raise InputError(f"{self.name} has no {min(foreign)}")
        numbers = [value for name, value in given.items() if name != "betas"]
        if not all(map(isfinite, [*numbers, *(self.betas or ())])):
            raise InputError(f"{self.name}: a number is not finite")
        try:
            return make([p for p in parameters if p.requires_grad], foreach=False, **given)
        except ValueError as error:
            raise InputError(f"{self.name}: {error}") from None

    def document(self) -> dict[str, Any]:
        """For a graph's `source`; `choice_of` reads it back."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def choice_of(document: object) -> Choice:
    """Raises InputError, one line."""
    try:
        row = dict(mapping(document, "it"))
        check_fields(row, ("name", "update"), ("lr", "weight_decay", "momentum", "betas", "eps"))
        name, update, betas = row.pop("name"), row.pop("update"), row.pop("betas", None)
        if name not in ("adamw", "sgd") or update not in ("in-backward", "after"):
            raise ValueError(f"no optimizer {name!r} that updates {update!r}")
        pair = None if betas is None else (float(betas[0]), float(betas[1]))
        return Choice(name, update, betas=pair, **{field: float(value) for field, value in row.items()})
    except (TypeError, ValueError, IndexError) as error:
        raise InputError(f"source.optimizer: {error}") from None


def updated(iteration: Iteration, choice: Choice | None) -> Iteration:
    """The iteration with the chosen updates of all parameters that require a gradient."""
    if choice is None:
        return iteration
    optimizer = choice.optimizer(iteration.module.parameters())
    return iteration._replace(updates=Updates(optimizer, choice.update))


class Rule(NamedTuple):
    """How one parameter is updated. group: the number of its group, whose settings hold for it."""

    target: Target
    states: tuple[str, ...]
    keywords: Mapping[str, Any]
    group: int


_FOLLOWED = ("lr", "weight_decay", "beta1", "beta2", "eps", "momentum", "dampening")
_SWITCHES = ("amsgrad", "maximize", "differentiable", "capturable", "fused")


def numbers(group: Mapping[str, Any]) -> list[float]:
    """In the order of the settings; 0 for what the optimizer has not."""
    betas = dict(zip(("beta1", "beta2"), group.get("betas", ()), strict=False))
    return [float({**group, **betas}.get(name, 0.0)) for name in _FOLLOWED]


def setting(group: int, name: str, example: float) -> Setting:
    """One of a group's numbers. The first setting of all is which update it is."""
    return Setting(1 + len(_FOLLOWED) * group + _FOLLOWED.index(name), example)


def fixed(group: Mapping[str, Any]) -> dict[str, Any]:
    """What changes the operations of an update, and who is updated."""
    switches = {name: bool(group.get(name)) for name in (*_SWITCHES, "nesterov", "weight_decay", "momentum")}
    return {**switches, "params": [id(parameter) for parameter in group["params"]]}


def rules(module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Rule]:
    """By parameter name, for those that the optimizer has. Raises InputError, one line."""
    make = _RULES.get(type(optimizer))
    if make is None:
        raise InputError(
            f"{type(optimizer).__name__} can't be planned: use torch.optim.AdamW or torch.optim.SGD"
        )
    by_parameter: dict[nn.Parameter, Rule] = {}
    for number, group in enumerate(optimizer.param_groups):
        for option in _SWITCHES:
            if group.get(option):
                raise InputError(f"{type(optimizer).__name__} with {option}=True can't be planned")
        by_parameter |= dict.fromkeys(group["params"], make(group, number))
    found = {name: by_parameter[p] for name, p in module.named_parameters() if p in by_parameter}
    if not found:
        raise InputError("the optimizer has no parameter of the module")
    return found


def _adamw(group: Mapping[str, Any], number: int) -> Rule:
    keywords = _settings(group, number, "beta1", "beta2", "eps", "weight_decay")
    return Rule(update_rules.adamw, STATES["adamw"], keywords, number)


def _sgd(group: Mapping[str, Any], number: int) -> Rule:
    if not group["momentum"]:
        return Rule(update_rules.sgd, STATES["sgd"], _settings(group, number, "weight_decay"), number)
    keywords = {
        **_settings(group, number, "momentum", "dampening", "weight_decay"),
        "nesterov": bool(group["nesterov"]),
    }
    return Rule(update_rules.sgd_momentum, STATES["sgd-momentum"], keywords, number)


_RULES: dict[type[torch.optim.Optimizer], Callable[[Mapping[str, Any], int], Rule]] = {
    torch.optim.AdamW: _adamw,
    torch.optim.SGD: _sgd,
}


def _settings(group: Mapping[str, Any], number: int, *names: str) -> dict[str, Any]:
    """A weight decay of 0 stays 0: it takes operations away."""
    now: dict[str, float] = dict(zip(_FOLLOWED, numbers(group), strict=True))
    return {
        name: 0.0 if name == "weight_decay" and not now[name] else setting(number, name, now[name])
        for name in names
    }
