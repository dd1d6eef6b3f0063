"""Bytes that an optimizer takes without a plan, counted on a copy of it whose tensors have no data.

The copy steps twice: the first step makes the states, the second has all of them in addition to its
temporaries. If its code asks for a number of a tensor it gets 1, or 0.5. What kernels take in addition to
their results is measured, each kernel once alone. Not seen: what a later step makes that the first two do
not.
"""

from __future__ import annotations

import copy
import inspect
import weakref
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..devices.measuring.live_bytes import live_peak
from ..devices.measuring.synthetic_inputs import substitute
from ..devices.storage.blocks import size_bytes
from ..graphs.errors import InputError
from ..torch_support.torch_fakes import (
    FakeTensor,
    FakeTensorMode,
    TorchDispatchMode,
    no_dispatch_modes,
    no_torch_function,
    uncompiled,
)
from ..torch_support.torch_operators import ASKS_FOR_A_NUMBER
from ..torch_support.torch_optimizers import HOOKS_OF_STEPS
from ..torch_support.torch_tensors import memory_of, parts_of_wrapper, wrapper_of, wraps_others
from ..torch_support.torch_trees import tree_leaves, tree_map
from .catalogue import described_groups
from .planned_optimizer import state_like

_STEPS = 2
_NUMBERS = 256
"""Bytes for the single numbers of which PyTorch makes tensors inside calls, a few at a time."""


class Taken(NamedTuple):
    """Bytes of an optimizer on the device.

    states: what stays from step to step.
    peak: the most in a step, states included, weights and gradients not.
    """

    states: int
    peak: int


def counted_of_kind(
    make: Callable[[list[nn.Parameter]], torch.optim.Optimizer], trained: Iterable[nn.Parameter]
) -> Taken:
    """Count the bytes of the step of an optimizer that is not there yet.

    make: its class, or another function that makes it of parameters. They have no data: some optimizers make
        states at once.

    Raises InputError, one line.
    """
    with FakeTensorMode():
        fakes = [_without_values(parameter) for parameter in trained]
        try:
            optimizer = make(fakes)
        except Exception as error:
            why = f"{type(error).__name__}: {' '.join(str(error).split())}"[:200]
            name = getattr(make, "__name__", type(make).__name__)
            raise InputError(
                f"{name} can't be made of the parameters alone ({why}): give an optimizer"
            ) from None
    if not isinstance(optimizer, torch.optim.Optimizer):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InputError(f"{type(optimizer).__name__} is not an optimizer of torch.optim")
    return counted(optimizer, {str(number): fake for number, fake in enumerate(fakes)})


def _without_values(parameter: nn.Parameter) -> nn.Parameter:
    """Return a parameter of the same form; the mode that is on makes it without data."""
    form = torch.empty_strided(
        parameter.shape, parameter.stride(), dtype=parameter.dtype, device=parameter.device
    )
    return nn.Parameter(form, requires_grad=parameter.requires_grad)


def counted(optimizer: torch.optim.Optimizer, trained: Mapping[str, nn.Parameter]) -> Taken:
    """Count the bytes of an optimizer's step.

    trained: the parameters that get gradients.

    Raises InputError, one line, if it needs a closure, or if its step can't run without data.
    """
    kind = type(optimizer).__name__
    step: Any = type(optimizer).step
    closure = inspect.signature(step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise InputError(f"{kind} calls the model itself, in a closure: a step has computed its loss already")
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    trained_ids = {id(parameter) for parameter in trained.values()}
    with mode:
        fakes = {id(p): _without_values(p) for group in optimizer.param_groups for p in group["params"]}
    if not trained_ids & fakes.keys():
        raise InputError("the optimizer has no parameter of the module")
    try:
        other = _without_data(optimizer, fakes)
        with mode:
            for key in trained_ids & fakes.keys():
                fakes[key].grad = torch.empty_like(fakes[key])
            given = [t for fake in fakes.values() for t in (fake, fake.grad) if t is not None]
            # A compiled function that met this mode would be left uncompiled for good: also in the own steps.
            with uncompiled(), _Counting(given) as counting:
                other.state.update(_states_without_data(optimizer, fakes))
                for _ in range(_STEPS):
                    step(other)
    except Exception as error:
        if there := _states_there(optimizer, trained):
            return Taken(there, there + _NUMBERS)
        why = f"{type(error).__name__}: {' '.join(str(error).split())}"[:200]
        raise InputError(
            f"what {kind} takes can't be counted without running it ({why}): let it step once "
            "before, or plan without optimizer=, give its bytes as states=, and call its step() later"
        ) from error
    return Taken(counting.live, counting.peak + _NUMBERS)


def update_workspace(optimizer: torch.optim.Optimizer) -> float:
    """Return the bytes of temporaries of a planned update per byte of its gradient.

    They are measured on the largest weight, with tensors of its form.

    optimizer: a planned one.
    """
    pairs = [(each, weight) for each in described_groups(optimizer) for weight in each.group["params"]]
    (described, group, first), weight = max(pairs, key=lambda pair: pair[1].nbytes)
    rule = described.rule(group, first, weight)
    with no_torch_function():
        like, gradient = (torch.zeros_like(weight.detach()) for _ in range(2))
    states, keywords = [state_like(like, rule, name) for name in rule.states], substitute(rule.keywords, {})
    numbers = (rule.lr.example, float(_STEPS))
    peak = live_peak(lambda: rule.target(like, gradient, *states, *numbers, **keywords), like.device)
    return (peak.peak_bytes - peak.left_bytes) / max(1, gradient.nbytes)


def _states_there(optimizer: torch.optim.Optimizer, trained: Mapping[str, nn.Parameter]) -> int:
    """Return the bytes on the device of the states that the optimizer has of all its trained parameters; 0 if
    its first step has not made them yet.
    """
    own = {id(weight) for group in optimizer.param_groups for weight in group["params"]}
    weights = [weight for weight in trained.values() if id(weight) in own]
    found = {
        memory_of(state): size_bytes(state, state.device)
        for weight in weights
        for state in _with_memory(optimizer.state.get(weight, {}).values())
        if state.device == weight.device
    }
    return sum(found.values()) if all(optimizer.state.get(weight) for weight in weights) else 0


def _with_memory(things: Iterable[Any]) -> Iterator[Tensor]:
    """Yield the tensors among these things; in place of one that wraps others, these."""
    for thing in things:
        if isinstance(thing, Tensor):
            yield from _with_memory(parts_of_wrapper(thing)) if wraps_others(thing) else (thing,)


def _without_data(
    optimizer: torch.optim.Optimizer, fakes: Mapping[int, nn.Parameter]
) -> torch.optim.Optimizer:
    """Copy the optimizer for these parameters, without steps.

    Schedules of rates and hooks hold the original.
    """
    own = {name: thing for name, thing in vars(optimizer).items() if name not in ("state", "step")}
    own |= {name: OrderedDict() for name in HOOKS_OF_STEPS}
    other = object.__new__(type(optimizer))
    # deepcopy's memo: parameters become fakes, and the copy refers to itself.
    vars(other).update(copy.deepcopy(own, {**fakes, id(optimizer): other}))
    other.state = defaultdict(dict)
    return other


def _states_without_data(
    optimizer: torch.optim.Optimizer, fakes: Mapping[int, nn.Parameter]
) -> dict[Tensor, dict[str, Any]]:
    """Copy the states that are there: some optimizers make theirs when they are made, not in a step."""

    def copied(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return copy.deepcopy(value)
        if wraps_others(value):
            return wrapper_of(value, map(copied, parts_of_wrapper(value)))
        return torch.empty(value.shape, dtype=value.dtype, device=value.device)

    return {
        fakes[id(parameter)]: {name: copied(value) for name, value in row.items()}
        for parameter, row in optimizer.state.items()
        if id(parameter) in fakes
    }


class _Counting(TorchDispatchMode):
    """Mode that counts the bytes of the tensors that are made and still alive, and the most of them at
    once.
    """

    def __init__(self, given: list[Tensor]) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._device = given[0].device
        self._given = {memory_of(tensor) for tensor in given}
        self._there: dict[int, int] = {}
        self._measured: dict[Any, int] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is ASKS_FOR_A_NUMBER and isinstance(args[0], FakeTensor):
            dtype = args[0].dtype
            return 0.5 if dtype.is_floating_point else dtype == torch.bool or 1  # a flag is True
        self.peak = max(self.peak, self.live)
        made = func(*args, **(kwargs or {}))
        for tensor in _with_memory(tree_leaves(made)):
            if memory_of(tensor) not in self._given:
                self._count(tensor)
        self.peak = max(self.peak, self.live + self._beside(func, args, kwargs or {}))
        return made

    def _beside(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        """Return the bytes of the kernel's temporaries.

        Kernels that work element by element, or over lists, take none.
        """
        arguments = [*args, *kwargs.values()]
        if torch.Tag.pointwise in func.tags or any(isinstance(one, list | tuple) for one in arguments):
            return 0
        tensors = [one for one in arguments if isinstance(one, FakeTensor) and one.device == self._device]
        key = (func, *((tuple(t.shape), t.stride(), t.dtype) for t in tensors))
        if tensors and key not in self._measured:
            with no_dispatch_modes():
                # Outside of the fake mode the kernel runs, on tensors of its own.
                real = tree_map(_stand_in, (args, kwargs))
                peak = live_peak(lambda: func(*real[0], **real[1]), self._device)
            self._measured[key] = peak.peak_bytes - peak.left_bytes
        return self._measured.get(key, 0)

    def _count(self, tensor: Tensor) -> None:
        """Count a tensor: its block is there as long as one of its tensors is."""
        memory, size = memory_of(tensor), size_bytes(tensor, self._device)
        if not self._there.get(memory):
            self.live += size
        self._there[memory] = self._there.get(memory, 0) + 1
        # Fakes have no memory whose release could be seen.
        weakref.finalize(tensor, self._gone, memory, size)

    def _gone(self, memory: int, size: int) -> None:
        self._there[memory] -= 1
        if not self._there[memory]:
            self.live -= size


def _stand_in(argument: Any) -> Any:
    if not isinstance(argument, FakeTensor):
        return argument
    made = torch.empty_strided(
        argument.shape, argument.stride(), dtype=argument.dtype, device=argument.device
    )
    # Uninitialized numbers could make a kernel fail, or take another path.
    return made.fill_(1)
