"""What bitsandbytes' optimizers share: states of one byte per element or of float32, by the package's own
operators.

    state1     a byte per element, an index of the table qmap1, times the block's number
    absmax1    a number per block of 256 elements
    qmap1      256 numbers, the same for all parameters

Adam has a second moment in state2 likewise. A parameter of less than `min_8bit_size` elements, or for which
the package's manager says 32 bits, has states of float32 and no tables. Paged optimizers keep the same
states; a plan places them as all others.

Reference: Dettmers et al., "8-bit Optimizers via Block-wise Quantization", ICLR 2022, arXiv:2110.02861.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from ..program.program import Target
from .planned_optimizer import (
    Form,
    Group,
    PlannedOptimizer,
    Settings,
    UpdateFunction,
    clipped,
    constant,
)

_PACKAGE = "bitsandbytes.optim"

BLOCK = 256
"""Elements with one number in absmax."""

_FOLLOWED = {"optim_bits", "min_8bit_size"}
"""Settings for single parameters that plans follow."""


def one_state(weight: Tensor, gradient: Tensor, *rest: Any, **hyperparameters: Any) -> None:
    """Update with a first moment. rest: state1, with 8 bits absmax1; lr, step."""
    state1, *absmax, lr, step = rest
    states = {"state1": state1, "state2": None, "absmax1": absmax[0] if absmax else None, "absmax2": None}
    _update(weight, gradient, states, (lr, step), **hyperparameters)


def two_states(weight: Tensor, gradient: Tensor, *rest: Any, **hyperparameters: Any) -> None:
    """Update with two moments. rest: state1, state2, with 8 bits absmax1, absmax2; lr, step."""
    state1, state2, *absmax, lr, step = rest
    absmax1, absmax2 = absmax or (None, None)
    states = {"state1": state1, "state2": state2, "absmax1": absmax1, "absmax2": absmax2}
    _update(weight, gradient, states, (lr, step), **hyperparameters)


def _update(
    weight: Tensor,
    gradient: Tensor,
    states: Mapping[str, Tensor | None],
    numbers: tuple[float, float],
    *,
    kind: str,
    clip: Tensor | None = None,
    **hyperparameters: float,
) -> None:
    """Update by the package's operator.

    numbers: learning rate and count of the step.
    kind: name of the update in the package.
    """
    lr, step = numbers
    given: dict[str, Any] = {
        "optimizer_name": kind,
        "g": clipped(gradient, clip).contiguous(),
        "p": weight,
        "lr": lr,
        "step": int(step),
        "beta3": 0.0,
        "alpha": 0.0,
        "gnorm_scale": 1.0,
        "skip_zeros": False,
        **hyperparameters,
    }
    if states["absmax1"] is None:
        given |= {"state1": states["state1"], "state2": states["state2"]}
        _functions().optimizer_update_32bit(**given)
        return
    second = None if states["absmax2"] is None else _table(False, weight.device)
    tables = {"qmap1": _table(True, weight.device), "qmap2": second}
    _functions().optimizer_update_8bit_blockwise(**given, **states, **tables)


def _functions() -> Any:
    return import_module("bitsandbytes.functional")


@cache
def _table(signed: bool, device: torch.device) -> Tensor:
    """Return the numbers that bytes of a state stand for."""
    return _functions().create_dynamic_map(signed=signed).to(device)


def _options(optimizer: Any, group: Group) -> Group:
    """Return the group with the package's settings, and which parameters have states of 8 bits."""
    own = {name: getattr(optimizer.args, name) for name in ("optim_bits", "min_8bit_size")}
    bits = tuple(
        config["optim_bits"] == 8 and weight.numel() >= config["min_8bit_size"]
        for weight in group["params"]
        for config in [{**own, **_overridden(optimizer, weight)}]
    )
    by_weight = {id(weight): one for weight, one in zip(group["params"], bits, strict=True)}
    return {**group, "kind": optimizer.optimizer_name, "eight_bits": bits, "by_weight": by_weight}


def _overridden(optimizer: Any, weight: Tensor) -> dict[str, Any]:
    """Return the settings that the package's manager has for a parameter, as its first step finds them."""
    manager, found = optimizer.mng, dict[str, Any]()
    for number, group in enumerate(optimizer.param_groups if manager.index2config else ()):
        places = [place for place, each in enumerate(group["params"]) if each is weight]
        found |= manager.index2config.get((number, places[0]), {}) if places else {}
    found |= manager.pid2config.get(id(weight), {})
    # The package takes these over at its first step.
    if not optimizer.initialized:
        for module, name, config in manager.module_weight_config_triple:
            found |= config if getattr(module, name, None) is weight else {}
    return found


def _choose(
    group: Group, settings: Settings, weight: Tensor
) -> tuple[Target, tuple[str, ...], dict[str, Any]]:
    keywords = {**settings("beta1", "beta2", "eps", "weight_decay"), "kind": group["kind"]}
    two = group["kind"] == "adam"
    states = ("state1", "state2") if two else ("state1",)
    if group["by_weight"][id(weight)]:
        states = (*states, *(name.replace("state", "absmax") for name in states))
    return two_states if two else one_state, states, keywords


def _forms(group: Group, weight: Tensor) -> Mapping[str, Form]:
    eight = group["by_weight"][id(weight)]
    scales = Form((-(-weight.numel() // BLOCK),), torch.float32)
    state = Form(None, torch.uint8 if eight else torch.float32)
    return {"state1": state, "state2": state, "absmax1": scales, "absmax2": scales}


def _unplanned(optimizer: Any) -> bool:
    """Tell whether options or parameters are others than the update functions take."""
    args = optimizer.args
    if args.max_unorm > 0.0 or args.skip_zeros or not getattr(args, "block_wise", True):
        return True
    weights = [(group, weight) for group in optimizer.param_groups for weight in group["params"]]
    return any(
        isinstance(group["lr"], Tensor)
        or weight.is_complex()
        or not weight.is_contiguous()  # the package makes it so, in other memory
        or not _overridden(optimizer, weight).keys() <= _FOLLOWED
        for group, weight in weights
    )


def _make(name: str, defaults: Mapping[str, Any], parameters: Any, **given: Any) -> torch.optim.Optimizer:
    return getattr(import_module(_PACKAGE), name)(parameters, **{**defaults, **given})


def described(
    name: str, hyperparameters: tuple[str, ...], passes: int, paged: bool = True, **defaults: Any
) -> PlannedOptimizer:
    """Return the description of the package's optimizers of a rule, of 8 and 32 bits.

    name: of the class with 32 bits.
    passes: how often an update with states of 8 bits passes over the gradient's bytes.
    paged: whether there are paged classes too.
    defaults: arguments of a class that has no such default.
    """
    kinds = [prefix + name + bits for prefix in ("", "Paged")[: 1 + paged] for bits in ("", "8bit", "32bit")]
    make: Callable[..., torch.optim.Optimizer] = partial(_make, f"{name}8bit", defaults)
    function = UpdateFunction(two_states if name.startswith("Adam") else one_state, constant(passes))
    return PlannedOptimizer(
        title=f"{name}8bit",
        make=make,
        hyperparameters=hyperparameters,
        numbers=("lr", "weight_decay", "beta1", "beta2", "eps"),
        choose=_choose,
        functions=(function,),
        forms=_forms,
        options=_options,
        counts=True,
        counts_in_int=True,
        tables={"qmap1": ("absmax1", partial(_table, True)), "qmap2": ("absmax2", partial(_table, False))},
        constants=("kind", "eight_bits"),
        zeros=("weight_decay",),
        unplanned=_unplanned,
        classes=tuple(f"bitsandbytes.optim.{name.lower()}.{kind}" for kind in kinds),
        by_element=False,
        # Below and above min_8bit_size (4,096), neither in whole blocks.
        probes=((67,), (4099,)),
        package=_PACKAGE,
    )
