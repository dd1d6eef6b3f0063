"""The planned optimizers by name, and which of them a live optimizer is.

rules    how a module's optimizer updates each parameter.
fixed    what a plan assumes of a group; its numbers are free, and read anew in each iteration.
"""

from __future__ import annotations

import pkgutil
from collections import OrderedDict, defaultdict
from collections.abc import Collection, Mapping
from importlib import import_module
from typing import Any, NamedTuple
from warnings import catch_warnings, simplefilter

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from ..graphs.errors import InputError, MismatchError
from ..torch_support.raw import is_a
from ..torch_support.torch_optimizers import HOOKS_OF_STEPS, hooks_of_steps
from . import optimizers
from .elementwise import is_foreach
from .planned_optimizer import FIRST_NUMBER, Group, PlannedOptimizer, Rule, UpdateFunction, state_like
from .several import SeveralOptimizers, members_of

OPTIMIZERS: dict[str, PlannedOptimizer] = {
    name: import_module(f"{optimizers.__name__}.{name}").OPTIMIZER
    for name in sorted(module.name for module in pkgutil.iter_modules(optimizers.__path__))
}
"""All files of `optimizers/`."""

FUNCTIONS: dict[str, UpdateFunction] = {
    function.call.__name__: function for one in OPTIMIZERS.values() for function in one.functions
}
"""All update functions by their names, which programs and fingerprints have."""

_PROBE_STEPS = 3


def titles(last: str = "or") -> str:
    """Write the names of all planned optimizers: `Adam, AdamW or SGD`."""
    *others, final = [one.title for one in OPTIMIZERS.values()]
    return f"{', '.join(others)} {last} {final}"


def description(optimizer: torch.optim.Optimizer) -> PlannedOptimizer | None:
    """Return the description of the optimizer's class; subclasses may do anything, and have none."""
    kind = type(optimizer)
    name = f"{kind.__module__}.{kind.__qualname__}"
    return next((one for one in OPTIMIZERS.values() if kind is one.make or name in one.classes), None)


def tables_of(optimizer: torch.optim.Optimizer) -> Collection[str]:
    """Return the names of the optimizer's constant tensors, which it makes anew."""
    found = [each for each in map(description, members_of(optimizer)) if each is not None]
    return {name for described in found for name in described.tables}


def is_planned(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether the optimizer's updates can be in a plan; all others step after it.

    Another package's class is believed only if its own step gives the same bits here and now: packages change
    their arithmetic from version to version.
    """
    if isinstance(optimizer, SeveralOptimizers):
        return all(map(is_planned, optimizer.members))
    described = description(optimizer)
    if described is None or described.unplanned(optimizer):
        return False
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    if not described.by_element and any(isinstance(each, DTensor) for each in parameters):
        return False
    return type(optimizer) is described.make or all(
        _same_bits(optimizer, described, group, shape)
        for group in optimizer.param_groups
        for shape in described.probes
    )


def check_by_element(optimizer: torch.optim.Optimizer, word: str) -> None:
    """Raise InputError if the optimizer updates weights as a whole, of which ranks have shares.

    word: what spreads them.
    """
    for described in map(description, members_of(optimizer)):
        if described is not None and not described.by_element:
            raise InputError(
                f"{word}: {described.title} updates a weight as a whole, of which a rank has a share: give "
                "an optimizer that updates each element by itself, like AdamW"
            )


class DescribedGroup(NamedTuple):
    """A parameter group with the description of its optimizer.

    group: with all options, see `PlannedOptimizer.options`.
    first: place of its first number among the settings.
    """

    described: PlannedOptimizer
    group: Group
    first: int

    @property
    def numbers(self) -> range:
        """Places of its numbers among the settings."""
        return range(self.first, self.first + len(self.described.numbers))


def described_groups(optimizer: torch.optim.Optimizer) -> list[DescribedGroup]:
    """Return the groups of a planned optimizer, in order. Raises InputError for another optimizer."""
    first, found = FIRST_NUMBER, list[DescribedGroup]()
    for member in members_of(optimizer):
        described = description(member)
        if described is None:
            raise InputError(f"{type(member).__name__} can't be planned: use {titles()}")
        for group in member.param_groups:
            found.append(DescribedGroup(described, described.options(member, group), first))
            first = found[-1].numbers.stop
    return found


def refuse_hooks(optimizer: torch.optim.Optimizer) -> None:
    """Raise InputError if code other than this package's is hooked to the optimizer's steps."""
    for hook in (hook for member in members_of(optimizer) for hook in hooks_of_steps(member)):
        if str(getattr(hook, "__module__", "")).partition(".")[0] != __name__.partition(".")[0]:
            raise InputError(
                "the optimizer has a hook on its steps (register_step_pre_hook, …_post_hook), "
                "which planned updates do not run: do it before or after step(batch)"
            )


def steps_of(optimizer: torch.optim.Optimizer) -> list[tuple[Any, ...]]:
    """Return the optimizer's class, the class's `step`, and the optimizer's own, None if it has none; of each
    if it is several.
    """
    members = members_of(optimizer)
    return [(type(each), type(each).step, vars(each).get("step")) for each in members]


def refuse_replaced_step(optimizer: torch.optim.Optimizer) -> None:
    """Raise InputError if `optimizer.step` is not that of the class as its package wrote it.

    PyTorch itself wraps it: when the first optimizer of a class is made, and for learning rate schedules.
    memplan replaces that of a Trainer that shards, whose loop calls it after planned updates.
    """
    for kind, of_class, own in steps_of(optimizer):
        _refuse_replaced(kind, of_class if own is None else own)


def _refuse_replaced(kind: type, function: Any) -> None:
    """Raise InputError if `step` of an optimizer of this class is not that of its package."""
    packages = {"memplan", "torch", kind.__module__.partition(".")[0]}
    # Each layer of wrapping is checked, down to the first function.
    while function is not None:
        function = getattr(function, "__func__", function)
        home = getattr(function, "__globals__", {}).get("__name__", "")
        if home.partition(".")[0] not in packages:
            name = getattr(function, "__qualname__", type(function).__name__)
            raise InputError(
                f"optimizer.step was replaced by {name}, which planned updates do not run: do what it does "
                "before or after step(batch), or plan without optimizer="
            )
        function = getattr(function, "__wrapped__", None)


def rules(module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Rule]:
    """Return by parameter name how the optimizer updates its parameters, in its order. Raises InputError."""
    groups = described_groups(optimizer)
    refuse_hooks(optimizer)
    refuse_replaced_step(optimizer)
    by_parameter: dict[nn.Parameter, Rule] = {}
    for described, group, first in groups:
        kind = described.title
        if options := [option for option in described.refused if group.get(option)]:
            raise InputError(f"{kind} with {options[0]}=True can't be planned: a plan calls kernels alone")
        tensors = [name for name in group if name not in ("params", "lr") and _holds_tensor(group[name])]
        if tensors:
            raise InputError(f"{kind} with tensors as {tensors[0]} can't be planned: give numbers")
        by_parameter |= {weight: described.rule(group, first, weight) for weight in group["params"]}
    names = {parameter: name for name, parameter in module.named_parameters()}
    found = {names[parameter]: rule for parameter, rule in by_parameter.items() if parameter in names}
    if not found:
        raise InputError("the optimizer has no parameter of the module")
    return found


def fixed(described: PlannedOptimizer, group: Group) -> dict[str, Any]:
    """Return what changes the operations of an update, and which parameters are updated."""
    switches = {name: bool(group.get(name)) for name in (*described.switches, *described.refused)}
    zeros = {name: bool(group.get(name)) for name in described.zeros}
    constants = {name: group.get(name) for name in described.constants}
    return {
        **switches,
        **zeros,
        **constants,
        "lr": _dtype(group["lr"]),
        "foreach": group.get("foreach"),
        "params": [id(parameter) for parameter in group["params"]],
    }


def check_fixed(described: PlannedOptimizer, group: Group, number: int, then: Mapping[str, Any]) -> None:
    """Raise MismatchError if something of `fixed` is not as it was then."""
    now, where = fixed(described, group), f"group {number} of the optimizer"
    for name in (name for name in now if now[name] != then[name]):
        if name == "params":
            raise MismatchError(f"{where} has other parameters than in the plan")
        if name == "foreach" and is_foreach(group) == is_foreach({**group, name: then[name]}):
            continue  # said in other words
        current, planned = group.get(name), then[name]
        if name in described.zeros:
            planned = f"one {'above' if planned else 'of'} 0"
        elif name == "lr":
            current, planned = _kind(now[name]), _kind(planned)
        raise MismatchError(f"{name} is {current} in {where}; the plan is for {planned}")


def _same_bits(
    optimizer: torch.optim.Optimizer, described: PlannedOptimizer, given: Group, shape: tuple[int, ...]
) -> bool:
    """Return whether steps of the optimizer's own, on numbers of a copy, are those of its update function.

    They run on the group's device, whose kernels may round as no other's do.
    """
    devices = {parameter.device for parameter in given["params"] if parameter.device.type != "meta"}
    # A separate generator: a check must not advance the user's random numbers.
    seeded = torch.Generator().manual_seed(0)
    numbers = torch.randn((1 + _PROBE_STEPS, *shape), generator=seeded, device="cpu", dtype=torch.float32)
    first, *gradients = numbers.to(min(devices, key=str, default="cpu")).unbind()
    other, weight = _copy_for(optimizer, given, nn.Parameter(first.clone()))
    group = described.options(other, other.param_groups[0])
    rule, values = described.rule(group, 0, weight), described.values(group)
    planned, states = first.clone(), [state_like(first, rule, name) for name in rule.states]
    keywords = {
        name: values[described.numbers.index(name)] if name in described.numbers else value
        for name, value in rule.keywords.items()
    }
    step: Any = type(optimizer).step  # an instance's may be wrapped by a schedule, which would count it
    for count, gradient in enumerate(gradients, 1):
        weight.grad = gradient.clone()
        try:
            with catch_warnings():
                simplefilter("ignore")  # the caller's own step warns the caller
                step(other)
        except Exception:  # a kernel for another device, say
            return False
        rule.target(planned, gradient, *states, values[0], float(count), **keywords)
    row = other.state[weight]
    kept = [row.get(name) for name in rule.states]
    return torch.equal(planned, weight.detach()) and all(
        isinstance(own, Tensor) and torch.equal(own, state) for own, state in zip(kept, states, strict=True)
    )


def _copy_for(
    optimizer: torch.optim.Optimizer, group: Group, weight: nn.Parameter
) -> tuple[torch.optim.Optimizer, nn.Parameter]:
    """Return a copy of the optimizer that has one group, of one weight, no states and no hooks."""
    # Past __init__, whose arguments nobody knows.
    other = object.__new__(type(optimizer))
    own = {name: value for name, value in vars(optimizer).items() if name != "step"}
    vars(other).update(own | {name: OrderedDict[Any, Any]() for name in HOOKS_OF_STEPS})
    other.param_groups, other.state = [{**group, "params": [weight]}], defaultdict(dict)
    return other, weight


def _dtype(number: Any) -> torch.dtype | None:
    return number.dtype if isinstance(number, Tensor) else None


def _kind(dtype: torch.dtype | None) -> str:
    return "a number" if dtype is None else f"a tensor of {dtype}"


def _holds_tensor(option: Any) -> bool:
    if is_a(option, tuple):
        return any(map(_holds_tensor, tuple.__iter__(option)))  # pyright: ignore[reportUnknownArgumentType]
    return is_a(option, Tensor)
