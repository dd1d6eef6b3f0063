"""The tensors and numbers of a live optimizer, as the updates of a program take them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from math import inf
from operator import attrgetter, is_not
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from ..devices.device.device import Device
from ..devices.sharded.local_tensors import local_state, planned_local
from ..devices.storage.host_access import at_home_value
from ..devices.storage.lazy_init import filled_with, unmade, zeros
from ..devices.storage.offloaded import Fill, Offloaded
from ..graphs.errors import MemplanError, MismatchError
from ..model.accumulated import OLD_SUM, SUM, Accumulated, accumulated, forget_sums, note_accumulated
from ..model.iteration import Iteration
from ..program.program import Program, Value
from ..program.state_blocks import state_and_rows, whole_states
from ..torch_support.torch_fakes import no_torch_function
from ..torch_support.torch_optimizers import count_as_stepped
from .averaged import AVERAGE
from .catalogue import (
    DescribedGroup,
    check_fixed,
    described_groups,
    description,
    fixed,
    refuse_hooks,
    refuse_replaced_step,
    steps_of,
)
from .counts import COUNT, Counts, count_bytes, new_numbers
from .masters import MASTER, is_own_master
from .several import members_of
from .sums import sums_of
from .updates import updates_weights

# What reads or asks each tensor of a list, in each iteration, without a loop of Python.
_FORM = attrgetter("dtype", "device", "shape")
_GRADIENT = attrgetter("grad")
_IS_THERE = partial(is_not, None)

_WITHOUT = (
    "Plan anew without optimizer=, and call loss.backward(), optimizer.step() and optimizer.zero_grad() "
    "after the step"
)
_ANEW = (
    "Make the module and a new optimizer, load the weights without the states, and plan, with all layers "
    "trained from the start"
)
"""Advice if some weights were updated more often than others; the second if ranks share them."""


def check_unfrozen(
    optimizer: torch.optim.Optimizer, before: Iterable[Tensor], since: Iterable[Tensor]
) -> None:
    """Raise MismatchError if planned updates can't go on with parameters that were not trained before.

    before: the parameters that have been trained so far.
    since: those that are trained from now on, in addition.
    """
    times = max((_times_updated(optimizer, each) for each in before), default=0.0)
    later = list(since)
    if any(_times_updated(optimizer, each) != times for each in later):
        raise _uneven(later)


def _times_updated(optimizer: torch.optim.Optimizer, weight: Tensor) -> float:
    """Return how often the optimizer has updated a parameter; if it does not count, 1 for any number."""
    row: dict[str, Any] = optimizer.state.get(weight, {})
    for member in members_of(optimizer):
        described = description(member)
        if described is not None and described.counts and weight in member.state:
            return float(row.get(COUNT, 0))
    return float(any(isinstance(x, Tensor) for name, x in row.items() if name not in OF_PLANS))


def _uneven(tensors: Iterable[Tensor]) -> MismatchError:
    """Return the error of parameters that were updated more often than others."""
    way = _ANEW if any(isinstance(each, DTensor) for each in tensors) else _WITHOUT
    return MismatchError(
        "the optimizer has updated some parameters more often than others, as after a layer was frozen: "
        f"planned updates count all equally. {way}"
    )


class OptimizerState:
    """State of the optimizer of an iteration that has updates. Around each iteration: `begin`, then `end`.

    It behaves as `torch.optim` does: missing states are made by the first iteration, zero, if that reads
    them; the counts of optimizers that count go on. So `state_dict()` is what it is after
    `optimizer.step()`, and `load_state_dict()` holds.
    """

    def __init__(self, program: Program, iteration: Iteration) -> None:
        assert iteration.updates is not None
        self._optimizer = iteration.updates.optimizer
        self._clipping = iteration.updates.clipping
        self._module = iteration.module
        self._program = program
        keys = [(parameter, state_and_rows(name)[0]) for parameter, name in program.states]
        self._states = list(dict.fromkeys(keys))
        self._places = list(map(self._states.index, keys))
        weight = self._module.get_parameter
        self.own_masters = {key for key in program.states if is_own_master(weight(key[0]), key[1])}
        self._names: dict[str, list[str]] = {}
        for parameter, state in self._states:
            if (parameter, state) not in self.own_masters:
                self._names.setdefault(parameter, []).append(state)
        given = {id(each) for group in self._optimizer.param_groups for each in group["params"]}
        self._updated = [n for n, each in self._module.named_parameters() if id(each) in given]
        self._of = iteration.accumulate if sums_of(program) else 1
        self._process = (0, 1)
        if iteration.processes is not None:
            self._process = (iteration.processes.rank, iteration.processes.size)
        self._adds = self._of > 1 and not any(map(updates_weights, program.operations))
        self._begun: Accumulated | None = None
        self._new = False
        groups = self._groups()
        self._counts = any(each.described.counts for each in groups)
        self._made: list[tuple[str, str]] = []
        self._numbers = Counts()
        self._ends = False
        self._are_weights = [key in self.own_masters for key in self._states]
        whole = {key: each.form for key, each in whole_states(program).items()}
        # Those of a bucket are made each in its own memory.
        self._forms = {
            key: whole[key] if key in whole else program.values[program.states[key]]._replace(offset=0)
            for key in self._states
        }
        self._planned_forms = [_FORM(self._forms[key]) for key in self._states]
        self._own_step: list[tuple[Any, ...]] = []
        self._kinds = [description(member) or groups[0].described for member in members_of(self._optimizer)]
        self._fixed = [(each.described, fixed(each.described, each.group)) for each in groups]

    def _groups(self) -> list[DescribedGroup]:
        return described_groups(self._optimizer)

    def refuse_steps(self) -> Callable[[], None]:
        """Make the optimizer's own `step` raise MemplanError if it has nothing to do.

        Returns a function that ends that.

        If there are gradients `step` goes on: an iteration of another form may be run in eager PyTorch.
        """
        groups = self._optimizer.param_groups

        def check(*_arguments: Any) -> None:
            if all(parameter.grad is None for group in groups for parameter in group["params"]):
                raise MemplanError(
                    "optimizer.step() has no gradients: the planned step has updated the weights already; "
                    "clipping or scaling of gradients is not in the plan"
                )

        return self._optimizer.register_step_pre_hook(check).remove

    def count_bytes(self, device: Device) -> int:
        """Return the bytes of step counts on the device, see the function of this name."""
        return count_bytes(self._optimizer, device)

    @property
    def counts(self) -> bool:
        """Whether updates depend on the number of the step."""
        return self._counts

    def by_tensor(self) -> dict[int, torch.dtype]:
        """Return the settings that fused kernels can read from 0-dimensional tensors with the same bits, by
        place, with the dtype: the number of the step, and learning rates that are such tensors themselves.

        A rate that is a number has more digits than the tensor would have.
        """
        rates = {
            first: group["lr"].dtype
            for _described, group, first in self._groups()
            if group.get("fused") and isinstance(group["lr"], Tensor)
        }
        return {**({0: torch.float32} if self._counts else {}), **rates}

    def check(self, tensors: Mapping[str, Tensor]) -> None:
        """Raise MismatchError if the optimizer's groups have changed in more than their numbers, or if there
        are gradients that planned updates do not take; InputError if it has hooks, or another `step`.

        tensors: the module's parameters as they are now, by name.
        """
        # The way through all wrappers takes long: it is taken only after a change.
        if (now := steps_of(self._optimizer)) != self._own_step:
            for member, described in zip(members_of(self._optimizer), self._kinds, strict=True):
                if description(member) is not described:
                    raise MismatchError(
                        f"the optimizer is a {type(member).__name__} now; the plan is for {described.title}"
                    )
            refuse_replaced_step(self._optimizer)
            self._own_step = now
        described, groups = self._groups(), self._optimizer.param_groups
        if len(groups) != len(self._fixed):
            raise MismatchError(
                f"the optimizer has {len(groups)} groups; the plan is for {len(self._fixed)}: plan "
                "anew after add_param_group"
            )
        for number, (each, (kind, then)) in enumerate(zip(described, self._fixed, strict=True)):
            check_fixed(kind, each.group, number, then)
        refuse_hooks(self._optimizer)
        updated = {id(parameter) for group in groups for parameter in group["params"]}
        weights = [tensors[name] for name in self._updated]
        if not updated.issuperset(map(id, weights)):
            name = next(name for name in self._updated if id(tensors[name]) not in updated)
            raise MismatchError(
                f"{name} was replaced; the optimizer has the one before: load into that one (without "
                "assign=True), or make optimizer and plan anew"
            )
        with no_torch_function():  # an offloaded tensor stays where it is
            grads = list(map(_GRADIENT, weights))
        if any(map(_IS_THERE, grads)):
            for name in (name for name, grad in zip(self._updated, grads, strict=True) if grad is not None):
                raise MismatchError(
                    f"{name}.grad is there, and would be left out: planned updates are by the gradients of "
                    "the step's own loss. Call zero_grad() before the step, compute the other loss in "
                    "loss_fn, or plan without optimizer="
                )

    def begin(self, tensors: Mapping[str, Tensor]) -> tuple[list[Tensor], list[float]]:
        """Begin an iteration, after `check`, with the same tensors.

        Returns the states, in the program's order, for a block of rows the whole state; and the settings:
        which step it is, the norm to clip to, whether the batch is the first of its update, each group's
        numbers.

        Without counts (SGD) the step is 1 if the states were not there, 2 if they were. Raises MismatchError
        if the states are others than the plan's.
        """
        self._begun = self._accumulated()
        self._made, self._ends, self._numbers = [], False, Counts()
        try:
            return self._read(tensors)
        except BaseException:
            self.undo()
            raise

    def _read(self, tensors: Mapping[str, Tensor]) -> tuple[list[Tensor], list[float]]:
        """Return what `begin` does, with the missing states made."""
        rows = {name: self._optimizer.state[tensors[name]] for name in self._names}
        if self._begun is not None:
            self._rename_old_sums(rows)
        # Each line here runs for all parameters in each iteration: what loops in C takes a third of the time.
        named = {id(tensors[name]): name for name in rows}
        groups = [
            (each, [named[at] for at in map(id, each.group["params"]) if at in named])
            for each in self._groups()
        ]
        made = {False}
        if not self._is_complete(groups, rows):
            made = {self._make(name, rows[name], each) for each, names in groups for name in names}
        self._new = made == {True} if self._begun is None else self._begun.new
        counts, numbers = self._numbers.read((each, [rows[name] for name in names]) for each, names in groups)
        counts = counts or {float(not self._new)}
        states = [
            tensors[parameter] if own else rows[parameter][state]
            for (parameter, state), own in zip(self._states, self._are_weights, strict=True)
        ]
        if any(issubclass(kind, DTensor) for kind in set(map(type, states))):
            states = [
                each if own else planned_local(each)
                for each, own in zip(states, self._are_weights, strict=True)
            ]
        self._check_forms(states)
        if len(made) > 1 or len(counts) > 1:
            raise _uneven(tensors.values())
        most = inf if self._clipping is None else self._clipping.max_norm
        states = [states[place] for place in self._places]
        return states, [1 + max(counts), most, float(self._begun is None), *numbers]

    def _is_complete(
        self, groups: Iterable[tuple[DescribedGroup, Sequence[str]]], rows: Mapping[str, Mapping[str, Any]]
    ) -> bool:
        """Tell whether the rows have all that `_make` would add to them or exchange."""
        for each, names in groups:
            described = each.described
            of_rows = [*described.products, *([COUNT] if described.counts else ())]
            found = [rows[name].get(key) for key in of_rows for name in names]
            found += [rows[name].get(state) for name in names for state in self._names[name]]
            if described.tables or not all(map(_IS_THERE, found)):
                return False
        return True

    def _rename_old_sums(self, rows: Mapping[str, dict[str, Tensor]]) -> None:
        """Give sums of an older version's checkpoint their present name."""
        for name, row in rows.items():
            if OLD_SUM in row and SUM not in row and (name, OLD_SUM) not in self._states:
                row[SUM] = row.pop(OLD_SUM)

    def _check_forms(self, states: list[Tensor]) -> None:
        """Raise MismatchError for a state of another form than the plan's."""
        with no_torch_function():  # one that is offloaded is empty, and has the form that it is held in
            found = list(map(_FORM, states))
        if found == self._planned_forms:
            return
        for now, tensor, key in zip(found, states, self._states, strict=True):
            form = self._forms[key]
            shape = form.shape if isinstance(tensor, Offloaded) else now[2]
            if (*now[:2], shape) != (form.dtype, form.device, form.shape):
                raise MismatchError(
                    f"{key[1]} of {key[0]} is {now[0]} {list(shape)} on {now[1]} in the optimizer; the plan "
                    f"is for {form.dtype} {list(form.shape)} on {form.device}"
                )

    def undo(self) -> None:
        """Make the iteration as if it had not begun: the states that it made are removed."""
        self._numbers.undo()
        if self._ends:
            note_accumulated(self._optimizer, self._begun)
        self._ends = False
        rows = self._rows()
        for name, state in self._made:
            rows[name].pop(state, None)
        for name in [name for name, row in rows.items() if not row]:
            self._optimizer.state.pop(self._module.get_parameter(name), None)
        self._made = []

    def end(self, *, skipped: bool = False) -> None:
        """Count the batch, or the step, for learning rate schedules too, which warn of optimizers that
        don't step.

        skipped: it has changed nothing.
        """
        if skipped:
            self.undo()
            return
        self._ends = True
        if self._adds:
            batches = 0 if self._begun is None else self._begun.batches
            note_accumulated(self._optimizer, Accumulated(batches + 1, self._of, self._new, *self._process))
            return
        note_accumulated(self._optimizer, None)
        for member in members_of(self._optimizer):
            count_as_stepped(member)
        self._numbers.advance()

    def forget_sums(self) -> None:
        """Forget the sums: the update begins anew with the next batch."""
        self._ends = False
        forget_sums(self._optimizer)

    @property
    def complete(self) -> bool:
        """Whether all states are there; those that are missing are made by the next iteration."""
        rows = self._rows()
        return all(state in rows[parameter] for parameter, names in self._names.items() for state in names)

    def tensor(self, parameter: str, state: str) -> Tensor:
        """Return a state as plans have it: of one that is spread over ranks, this rank's share; of a block
        of rows the whole state.
        """
        weight = self._module.get_parameter(parameter)
        found, (state, _rows) = self._optimizer.state[weight], state_and_rows(state)
        return weight if is_own_master(weight, state) else planned_local(found[state])

    def _accumulated(self) -> Accumulated | None:
        """Return the progress of the update, if the optimizer holds sums.

        Raises MismatchError if the sums are of another number of batches, or another process's.
        """
        now = accumulated(self._optimizer)
        if now is not None and (now.of != self._of or now.batches >= now.of):
            raise MismatchError(
                f"the optimizer holds sums of {now.batches} of {now.of} batches; the plan has "
                f"gradient_accumulation_steps={self._of}"
            )
        if now is not None and (now.rank, now.size) != self._process:
            rank, size = self._process
            raise MismatchError(
                f"the optimizer holds the sums of rank {now.rank} of {now.size} in the midst of an update, "
                f"this is rank {rank} of {size}: load what this rank has saved, or what was saved "
                "between updates"
            )
        return now

    def _rows(self) -> dict[str, dict[str, Any]]:
        """Return by parameter name what the optimizer holds for it."""
        state = self._optimizer.state
        return {name: state.get(self._module.get_parameter(name), {}) for name in self._names}

    def _first(self, parameter: str, state: str) -> Fill:
        """Return the fill of a new state: a master is its weight as it then is; an average its master, if
        it has one.
        """
        if state not in (MASTER, AVERAGE):
            return zeros
        weight = self._module.get_parameter(parameter)
        master = self._optimizer.state[weight].get(MASTER) if state == AVERAGE else None
        return partial(_as, weight if master is None else master, self._forms[parameter, state])

    def _make(self, parameter: str, row: dict[str, Any], of: DescribedGroup) -> bool:
        """Make the missing states of a parameter, uninitialized; tell whether some were missing that are
        the optimizer's own.
        """
        device = self._program.device
        missing = [state for state in self._names[parameter] if row.get(state) is None]
        own = [state for state in missing if state not in OF_PLANS]
        others = new_numbers(of, device, row)
        for name, (state, table_on) in of.described.tables.items():
            if state not in self._names[parameter]:
                continue
            table = table_on(device)
            if name in row and row[name] is not table:
                _check_table(parameter, name, row[name], table)
                row[name] = table  # one for all parameters: a loaded one has taken separate memory
            others[name] = table
        for name, value in others.items():
            if row.get(name) is None:
                row[name] = value
                self._made.append((parameter, name))
        for state in missing:
            self._made.append((parameter, state))
            weight, form = self._module.get_parameter(parameter), self._forms[parameter, state]
            if isinstance(weight, DTensor):
                row[state] = local_state(weight, form.dtype, copied=state == MASTER)
                continue
            row[state] = unmade(form, self._first(parameter, state))
        return bool(own)


def _check_table(parameter: str, name: str, found: Tensor, table: Tensor) -> None:
    """Raise MismatchError if a table of a loaded state is not the one that updates use."""
    if found.shape != table.shape or not torch.equal(found.to(table.device, table.dtype), table):
        raise MismatchError(
            f"{name} of {parameter} in the optimizer is another table than that of the package here: load "
            "states that it has saved"
        )


OF_PLANS = (MASTER, AVERAGE, SUM)
"""States that plans have in addition to the optimizer's own."""


def _as(tensor: Tensor, form: Value, bytes_: Tensor) -> None:
    """Fill bytes with a tensor's values, in whichever memory these are then."""
    filled_with(at_home_value(tensor), form, bytes_)
