"""Optimizers whose steps can be planned: `torch.optim.AdamW`, `Adam` and `SGD`, with all their options.

Choice   what a command line or a graph's `source` says; makes the optimizer of a module.
rules    what a module's optimizer does to each parameter.
numbers  of its groups, which each iteration takes as they are then: `Settings` of the program.
fixed    what of a group a plan holds for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from math import isfinite
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ...graphs.errors import InputError, MismatchError
from ...graphs.files.fields import check_fields, mapping
from ...graphs.transformations.updates import STATES, When
from ..model.clipping import Clipping, given_norm
from ..model.iteration import Iteration, Updates
from ..program.program import Setting, Target
from ..torch_internals import HOOKS_OF_STEPS
from . import rules as update_rules

_MAKE: dict[str, type[torch.optim.Optimizer]] = {
    "adamw": torch.optim.AdamW,
    "adam": torch.optim.Adam,
    "sgd": torch.optim.SGD,
}
_OWN = {"momentum": ("sgd",), "nesterov": ("sgd",)} | dict.fromkeys(
    ("betas", "eps", "amsgrad"), ("adamw", "adam")
)
"""Hyperparameters that not all optimizers have."""


@dataclass(frozen=True)
class Choice:
    """name: adamw, adam or sgd. update: when. clip_norm: of the gradients, None without clipping. fused: by
    PyTorch's fused kernels, where these take the parameters: some times as fast, and other bits than without.
    The rest as in PyTorch; None: PyTorch's default."""

    name: str
    update: When = "in-backward"
    lr: float | None = None
    weight_decay: float | None = None
    momentum: float | None = None
    betas: tuple[float, float] | None = None
    eps: float | None = None
    amsgrad: bool | None = None
    nesterov: bool | None = None
    clip_norm: float | None = None
    fused: bool = True

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """Raises InputError for a hyperparameter that PyTorch refuses or the optimizer has not."""
        ours = ("name", "update", "clip_norm", "fused")
        given = {k: v for k, v in asdict(self).items() if v is not None and k not in ours}
        if self.name not in _MAKE:
            raise InputError(f"unknown optimizer {self.name!r}: known are {', '.join(_MAKE)}")
        if foreign := [name for name in given if self.name not in _OWN.get(name, _MAKE)]:
            raise InputError(f"{self.name} has no {min(foreign)}")
        numbers = [value for name, value in given.items() if name != "betas"]
        if not all(map(isfinite, [*numbers, *(self.betas or ())])):
            raise InputError(f"{self.name}: a number is not finite")
        try:
            make: Any = _MAKE[self.name]
            trained = [p for p in parameters if p.requires_grad]
            way = {"fused": True} if self.fused and all(map(_is_for_fused, trained)) else {"foreach": False}
            return make(trained, **way, **given)
        except ValueError as error:
            raise InputError(f"{self.name}: {error}") from None

    def document(self) -> dict[str, Any]:
        """For a graph's `source`; `choice_of` reads it back."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def choice_of(document: object) -> Choice:
    """A document without `fused` is of before there was a choice. Raises InputError, one line."""
    try:
        row = dict(mapping(document, "it"))
        check_fields(row, ("name", "update"), tuple(field.name for field in fields(Choice)[2:]))
        name, update, betas = row.pop("name"), row.pop("update"), row.pop("betas", None)
        switches = {"fused": bool(row.pop("fused", False))}
        switches |= {field: bool(row.pop(field)) for field in ("amsgrad", "nesterov") if field in row}
        if name not in _MAKE or update not in ("in-backward", "after"):
            raise ValueError(f"no optimizer {name!r} that updates {update!r}")
        pair = None if betas is None else (float(betas[0]), float(betas[1]))
        numbers = {field: float(value) for field, value in row.items()}
        return Choice(name, update, betas=pair, **numbers, **switches)
    except (TypeError, ValueError, IndexError) as error:
        raise InputError(f"source.optimizer: {error}") from None


def updated(iteration: Iteration, choice: Choice | None) -> Iteration:
    """The iteration with the chosen updates of all parameters that require a gradient."""
    if choice is None:
        return iteration
    optimizer = choice.optimizer(iteration.module.parameters())
    clipping = None if choice.clip_norm is None else Clipping(given_norm(choice.clip_norm))
    return iteration._replace(updates=Updates(optimizer, choice.update, clipping))


class Rule(NamedTuple):
    """How one parameter is updated. group: the number of its group, whose settings hold for it. dtype: of the
    states, None for the parameter's."""

    target: Target
    states: tuple[str, ...]
    keywords: Mapping[str, Any]
    group: int
    dtype: torch.dtype | None = None


_FOLLOWED = ("lr", "weight_decay", "beta1", "beta2", "eps", "momentum", "dampening")
_HEAD = 3
_REFUSED = ("differentiable", "capturable")
_SWITCHES = ("amsgrad", "maximize", "fused", "nesterov", "decoupled_weight_decay")


def numbers(group: Mapping[str, Any]) -> list[float]:
    """In the order of the settings; 0 for what the optimizer has not."""
    betas = dict(zip(("beta1", "beta2"), group.get("betas", ()), strict=False))
    return [float({**group, **betas}.get(name, 0.0)) for name in _FOLLOWED]


def setting(group: int, name: str, example: float) -> Setting:
    """One of a group's numbers. The first settings are which update it is, the norm
    to clip to, whether it is the first batch of its update."""
    return Setting(_HEAD + len(_FOLLOWED) * group + _FOLLOWED.index(name), example)


def fixed(group: Mapping[str, Any]) -> dict[str, Any]:
    """What changes the operations of an update, and who is updated."""
    switches = {name: bool(group.get(name)) for name in (*_SWITCHES, *_REFUSED)}
    zeros = {name: bool(group.get(name)) for name in ("weight_decay", "momentum")}
    lr = {"lr": _dtype(group["lr"])}
    return {**switches, **zeros, **lr, "params": [id(parameter) for parameter in group["params"]]}


def check_fixed(group: Mapping[str, Any], number: int, then: Mapping[str, Any]) -> None:
    """Raises MismatchError where something of `fixed` is not as it was then."""
    now, where = fixed(group), f"group {number} of the optimizer"
    for name in (name for name in now if now[name] != then[name]):
        if name == "params":
            raise MismatchError(f"{where} has other parameters than in the plan")
        there, planned = group.get(name), then[name]
        if name in ("weight_decay", "momentum"):
            planned = f"one {'above' if planned else 'of'} 0"
        elif name == "lr":
            there, planned = _kind(now[name]), _kind(planned)
        raise MismatchError(f"{name} is {there} in {where}; the plan is for {planned}")


def is_planned(optimizer: torch.optim.Optimizer) -> bool:
    return type(optimizer) in _RULES


def refuse_hooks(optimizer: torch.optim.Optimizer) -> None:
    """Raises InputError where code stands around its steps, that of this package aside."""
    for register in HOOKS_OF_STEPS:
        for hook in getattr(optimizer, register).values():
            if str(getattr(hook, "__module__", "")).partition(".")[0] != __name__.partition(".")[0]:
                raise InputError(
                    "the optimizer has a hook on its steps (register_step_pre_hook, …_post_hook), "
                    "which planned updates do not run: do it before or behind step(batch)"
                )


def rules(module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Rule]:
    """By parameter name, for those that the optimizer has, in its order. Raises InputError, one line."""
    make, kind = _RULES.get(type(optimizer)), type(optimizer).__name__
    if make is None:
        raise InputError(f"{kind} can't be planned: use torch.optim.AdamW, Adam or SGD")
    refuse_hooks(optimizer)
    by_parameter: dict[nn.Parameter, Rule] = {}
    for number, group in enumerate(optimizer.param_groups):
        if options := [option for option in _REFUSED if group.get(option)]:
            raise InputError(f"{kind} with {options[0]}=True can't be planned: a plan calls kernels alone")
        tensors = [name for name in group if name not in ("params", "lr") and _holds_tensor(group[name])]
        if tensors:
            raise InputError(f"{kind} with tensors as {tensors[0]} can't be planned: give numbers")
        by_parameter |= dict.fromkeys(group["params"], make(group, number))
    names = {parameter: name for name, parameter in module.named_parameters()}
    found = {names[parameter]: rule for parameter, rule in by_parameter.items() if parameter in names}
    if not found:
        raise InputError("the optimizer has no parameter of the module")
    return found


def _adam(group: Mapping[str, Any], number: int) -> Rule:
    """Fused kernels take a rate that is a tensor by its value; other rules round with it."""
    kind = "adamw-amsgrad" if group["amsgrad"] else "adamw"
    keywords = _settings(group, number, "beta1", "beta2", "eps", "weight_decay")
    if not group["decoupled_weight_decay"]:
        keywords["decoupled"] = False
    if not group["fused"] and (dtype := _dtype(group["lr"])) is not None:
        keywords["lr_dtype"] = dtype
    return _rule(kind, group, keywords, number)


def _sgd(group: Mapping[str, Any], number: int) -> Rule:
    if not group["momentum"]:
        return _rule("sgd", group, _settings(group, number, "weight_decay"), number)
    keywords = _settings(group, number, "momentum", "dampening", "weight_decay")
    return _rule("sgd-momentum", group, {**keywords, "nesterov": bool(group["nesterov"])}, number)


def _rule(kind: str, group: Mapping[str, Any], keywords: dict[str, Any], number: int) -> Rule:
    if group["maximize"]:
        keywords["maximize"] = True
    return Rule(_TARGETS[kind][bool(group["fused"])], STATES[kind], keywords, number)


_RULES: dict[type[torch.optim.Optimizer], Callable[[Mapping[str, Any], int], Rule]] = {
    torch.optim.AdamW: _adam,
    torch.optim.Adam: _adam,
    torch.optim.SGD: _sgd,
}
_TARGETS: dict[str, tuple[Target, Target]] = {
    "adamw": (update_rules.adamw, update_rules.adamw_fused),
    "adamw-amsgrad": (update_rules.adamw_amsgrad, update_rules.adamw_fused_amsgrad),
    "sgd": (update_rules.sgd, update_rules.sgd_fused),
    "sgd-momentum": (update_rules.sgd_momentum, update_rules.sgd_momentum_fused),
}
"""One tensor after the other, which `foreach` equals, and fused."""


def _settings(group: Mapping[str, Any], number: int, *names: str) -> dict[str, Any]:
    """A weight decay of 0 stays 0: it takes operations away."""
    now: dict[str, float] = dict(zip(_FOLLOWED, numbers(group), strict=True))
    return {
        name: 0.0 if name == "weight_decay" and not now[name] else setting(number, name, now[name])
        for name in names
    }


def _is_for_fused(parameter: Tensor) -> bool:
    """Of real numbers that fill their memory: fused kernels walk over that, whatever the strides say."""
    return parameter.is_floating_point() and torch.empty_like(parameter).stride() == parameter.stride()


def _dtype(number: Any) -> torch.dtype | None:
    return number.dtype if isinstance(number, Tensor) else None


def _kind(dtype: torch.dtype | None) -> str:
    return "a number" if dtype is None else f"a tensor of {dtype}"


def _holds_tensor(option: Any) -> bool:
    if isinstance(option, tuple):
        return any(map(_holds_tensor, option))  # pyright: ignore[reportUnknownArgumentType]
    return isinstance(option, Tensor)
