"""Bytes that a loop has on the device outside of its plans, which count in the budget from the first step on.

Without `optimizer=` the loop's own optimizer steps after the plan. Its states stay, and gradients of the last
backward are still in `.grad` while the next step runs: where the loop calls `zero_grad` between step and
`backward`, and wherever it accumulates.

    ┌── planned forward and backward ──┐┌─ optimizer.step() ─┐
    │ weights, activations, gradients  ││ weights, gradients │
    ├──────────────────────────────────┤├────────────────────┤
    │ states, `.grad` of before        ││ states, its own    │
    └──────────────────────────────────┘└────────────────────┘

The optimizer is looked for among all objects, since nothing leads from a parameter to it. If there is none
yet, AdamW is assumed, and the second step looks once more. `states=` answers instead. If other parameters
require a gradient than before, all is counted anew: frozen ones of planned updates leave their states there.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ...devices.device.choice import device_of
from ...devices.storage.offloaded import hold_of
from ...graphs.collector import objects_of
from ...graphs.errors import InputError
from ...graphs.units import format_bytes
from ...model.iteration import Iteration
from ...planner.budget import spelled
from ...planner.device_memory import DeviceMemory
from ...profiling.compare.peaks import RESIDENT, resident_bytes
from ...program.program import Program
from ...solvers.problem import InfeasibleError
from ...torch_support.torch_fakes import no_torch_function
from ...torch_support.unsupported import warn_user
from ...updates.optimizer_memory import Taken, counted, counted_of_kind
from ..converters import States
from ..options import Options

ASSUMED = torch.optim.AdamW
"""Optimizer whose states are counted if none is found."""

_BYTES = "states="
"""Name of an optimizer that is not known: its states were given in bytes."""

_SECOND = 2
"""Call of the step before which a loop has stepped its optimizer."""

_NUMBERS = 16
"""Single numbers that a loop has on the device: the last loss, a scale, a norm."""


class StepInfeasibleError(InfeasibleError):
    """The budget is below what an optimizer's step needs after the plan. solver: the optimizer's name."""

    def _verdict(self) -> str:
        needs = (
            f"with weights, gradients and states the step of {self.solver} needs {spelled(self.min_memory)}"
        )
        return f"no schedule within {spelled(self.budget)}: {'; '.join([*self._share(), needs])}"


class LoopMemory(NamedTuple):
    """Bytes on the device that a loop has outside of its plans.

    states: what stays all the time.
    gradients: `.grad` of earlier iterations, alive while one runs.
    offloaded: these are in host memory while one runs (old_gradients.py).
    peak: the most while the optimizer steps or gradients are clipped, with the states, without weights and
        gradients.
    name: the optimizer's.
    assumed: why the optimizer is not known; empty if it is.
    """

    states: int = 0
    gradients: int = 0
    peak: int = 0
    name: str = ""
    assumed: str = ""
    offloaded: bool = False

    @property
    def bytes(self) -> int:
        """Bytes of the budget that plans do not have."""
        return self.states + (0 if self.offloaded else self.gradients)

    def around(self, size: int, other: int = 0) -> DeviceMemory:
        """State the loop's memory around so many bytes of a plan. other: bytes of all else."""
        owner = "" if self.name == _BYTES else self.name
        return DeviceMemory(size, self.states, self.bytes - self.states, other, owner)

    def needed(self, program: Program) -> int:
        """Return the bytes on the device while the optimizer steps after an iteration; 0 if none is known."""
        if not self.peak:
            return 0
        made = {x for x in program.results if program.storages[x].kind not in RESIDENT}
        after = self.peak
        if self.offloaded:  # `backward` adds to them, if they are not dropped: they are back before
            after = max(after, self.states + self.gradients)
        return resident_bytes(program) + sum(program.storages[x].bytes for x in made) + after

    def check_step(self, program: Program, budget: int) -> None:
        """Raise InfeasibleError if the optimizer's step does not fit.

        budget: bytes of the plan.
        """
        if (needed := self.needed(program) - self.bytes) > budget:
            raise StepInfeasibleError(self.name, budget, needed, needed)

    def added_to(self, error: InfeasibleError) -> InfeasibleError:
        """Return the error with these bytes in its figures, and what can be done about them."""
        if not self.bytes:
            return error
        more = error.with_extra_bytes(self.bytes)
        more.advise(self.counted_line)
        return more

    @property
    def counted_line(self) -> str:
        """What the budget holds in addition to the plan, as a clause."""
        lines = [f"the budget includes {self.around(0).extra}"] if self.bytes else []
        if self.offloaded:
            lines += [f"{format_bytes(self.gradients)} of .grad are in host memory while an iteration runs"]
        return "; ".join(lines)

    @property
    def line(self) -> str:
        """What was counted, as a sentence."""
        if not self.assumed:
            return self.counted_line
        return f"{self.assumed}: {self.counted_line}; states= says otherwise, bytes or an optimizer"


Count = Callable[[Mapping[str, nn.Parameter]], LoopMemory]
"""A function that counts, given the parameters by name that were trained so far."""


class LoopWatch:
    """What a loop has outside of its plans: counted first, then looked at between its iterations.

    counted: the bytes counted so far.
    """

    def __init__(self, iteration: Iteration, options: Options, count: Count | None) -> None:
        """Count. Raises InputError.

        count: of parameters that were trained so far; None for that of the loop's own optimizer.
        """
        self._module, self._parameters = iteration.module, trained_parameters(iteration.module)
        self._trained = self._parameters.keys()
        self._options = options
        within = iteration.purpose == "train"  # a part's budget is its own: nothing of its loop counts
        looks = count is None and iteration.updates is None and within
        if count is None and iteration.updates is not None:
            count = partial(_left_by_frozen, iteration.updates.optimizer)
        elif count is None:
            count = partial(loop_memory, options=options)
        self._count = count if within else None
        self.counted = self._counted()
        self._freed = looks and options.gradients == "freed"
        self._calls = 0
        self._gradients: Mapping[str, Any] = {}

    def _counted(self) -> LoopMemory:
        return LoopMemory() if self._count is None or not self._parameters else self._count(self._parameters)

    @property
    def bytes_now(self) -> int:
        """Bytes that are outside of plans now: those of `.grad` only if there are gradients in it."""
        there = self.counted.bytes > self.counted.states and self._has_gradients()
        return self.counted.states + (self.counted.gradients if there else 0)

    def others_train(self) -> bool:
        """Tell whether other parameters require a gradient than when `look_at_frozen` was called last."""
        return trained_parameters(self._module).keys() != self._trained

    def unfrozen(self) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
        """Return the parameters that required a gradient when `look_at_frozen` was called last, and those
        that do in addition now.
        """
        now = trained_parameters(self._module)
        before = [each for name, each in self._parameters.items() if name in self._trained]
        return before, [each for name, each in now.items() if name not in self._trained]

    def look_at_frozen(self) -> LoopMemory | None:
        """Return the bytes that are counted from now on, None if they are as before.

        They are counted if other parameters require a gradient than when they were last. Raises InputError.
        """
        if not self.others_train():
            return None
        trained = trained_parameters(self._module)
        before, self._trained = self.counted, trained.keys()
        self._parameters = self._parameters | trained  # an optimizer keeps the states of frozen ones
        known = self._counted()._replace(offloaded=before.offloaded)
        if self._options.gradients == "freed" and before.gradients:  # it was found not to be so
            known = known._replace(gradients=gradient_bytes(self._parameters.values()))
        self.counted = known
        return None if known == before else known

    def look(self, gradients: Mapping[str, Any]) -> LoopMemory | None:
        """Return the bytes that are counted from now on, None if they are as before.

        Call it before each iteration that trains. Warns of what was not counted. Raises InputError.

        gradients: the plan's, by name, the same object in each of its iterations.
        """
        before, self._calls = self.counted, self._calls + 1
        if gradients is not self._gradients:
            self._gradients = gradients
            self.look_at_frozen()
        if self._freed and self._has_gradients():
            self._freed = False
            self.counted = before._replace(gradients=gradient_bytes(self._parameters.values()))
            warn_user("gradients='freed', but .grad has some when the step is called: they count from now on")
        if before.assumed and self._calls == _SECOND and optimizers_of(self._parameters.values()):
            known = loop_memory(self._parameters, self._options)
            self.counted = known._replace(gradients=self.counted.gradients, offloaded=before.offloaded)
            # If it takes less, the plan still holds and nothing is said.
            if known.states > before.states or known.peak > before.peak:
                warn_user(f"{known.name} takes more than was assumed: the plan gets less from now on")
        return None if self.counted is before else self.counted

    def _has_gradients(self) -> bool:
        with no_torch_function():
            return any(each.grad is not None for each in self._parameters.values())


def loop_memory(trained: Mapping[str, nn.Parameter], options: Options) -> LoopMemory:
    """Count what a loop that trains these parameters has outside of its plans. Raises InputError."""
    device = device_of(next(iter(trained.values())).device)
    gradients = gradient_bytes(trained.values()) if options.gradients == "kept" else 0
    taken, name, assumed = _states(options.states, trained)
    if isinstance(options.states, int):
        # The user's bytes are of all that the loop has: norms and numbers are in them.
        return LoopMemory(taken.states, gradients, taken.peak, name)
    number = device.rounded(torch.float32.itemsize)
    states = taken.states + _NUMBERS * number
    norms = 2 * len(trained) * number  # clip_grad_norm_: one of each gradient, then all in one tensor
    peak = max(taken.peak + _NUMBERS * number, states + norms)
    return LoopMemory(states, gradients, peak, name, assumed)


def _left_by_frozen(optimizer: Optimizer, trained: Mapping[str, nn.Parameter]) -> LoopMemory:
    """Count the states on the device of parameters that were trained by planned updates, and are frozen."""
    with no_torch_function():
        frozen = [each for each in trained.values() if not each.requires_grad]
        rows = [(each.device, optimizer.state.get(each, {})) for each in frozen]
        size = sum(
            device_of(device).rounded(_on_device(state)) for device, row in rows for state in row.values()
        )
    return LoopMemory(size, 0, 0, f"frozen parameters in {type(optimizer).__name__}")


def _on_device(state: Any) -> int:
    """Return the bytes of a state on the device; none for a number, which a count of steps is."""
    if not isinstance(state, Tensor) or state.dim() == 0:
        return 0
    hold = hold_of(state)
    if hold is None:
        return state.nbytes
    parts = [(x.form, x.copies) for x in hold.blocks()] if hold.blocks else [(hold.form, hold.copies())]
    return sum(form.end for form, copies in parts if any(isinstance(each, Tensor) for each in copies))


def trained_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that get gradients, by name."""
    return {name: each for name, each in module.named_parameters() if each.requires_grad}


def gradient_bytes(parameters: Iterable[nn.Parameter]) -> int:
    """Return the bytes of the gradients of all these parameters."""
    return sum(device_of(each.device).rounded(each.nbytes) for each in parameters)


def optimizers_of(parameters: Iterable[nn.Parameter]) -> list[Optimizer]:
    """Return the optimizers of any of these parameters that the process has.

    Of those that share their groups, a wrapper and what it wraps, only the one of the simpler class.
    """
    ids = {id(parameter) for parameter in parameters}
    found: dict[int, Optimizer] = {}
    for each in objects_of(Optimizer):
        if "param_groups" not in vars(each):
            continue
        groups = each.param_groups
        if ids.isdisjoint(id(parameter) for group in groups for parameter in group["params"]):
            continue
        other = found.get(id(groups))
        if other is None or len(type(each).__mro__) < len(type(other).__mro__):
            found[id(groups)] = each
    return list(found.values())


def _states(states: States, trained: Mapping[str, nn.Parameter]) -> tuple[Taken, str, str]:
    """Return what states and steps take, the optimizer's name, and why it is not known."""
    if isinstance(states, int):
        return Taken(states, states), _BYTES, ""
    if isinstance(states, Optimizer):
        return counted(states, trained), type(states).__name__, ""
    if states is not None:
        return counted_of_kind(states, trained.values()), getattr(states, "__name__", _BYTES), ""
    found = _found(trained.values())
    try:
        if found:
            return _all([counted(each, trained) for each in found]), _names(found), ""
        why = "no optimizer of the module's parameters is there yet, so those of AdamW are assumed"
    except InputError as error:
        why = f"{error}; those of AdamW are assumed"
    return counted_of_kind(ASSUMED, trained.values()), ASSUMED.__name__, why


def _found(parameters: Iterable[nn.Parameter]) -> list[Optimizer]:
    parameters = list(parameters)
    found = optimizers_of(parameters)
    if len(found) > 1:
        gc.collect()  # one that was replaced may be there in a cycle of references
        found = optimizers_of(parameters)
    return found


def _all(each: Sequence[Taken]) -> Taken:
    """Add up optimizers that step one after the other."""
    states = sum(one.states for one in each)
    return Taken(states, states + max(one.peak - one.states for one in each))


def _names(found: Sequence[Optimizer]) -> str:
    return " and ".join(sorted({type(each).__name__ for each in found}))
