"""Updates in a traced program: what graphs/transformations/updates.py does to a graph, with calls that can
run.

The states become residents, like the parameters; the gradients that are used up are not results any more.
Rules and positions are as there: `in-backward` right after the last operation that contributes to the
gradient or that reads or changes the weight, by storage, so that tied and packed tensors are counted whole.
Updates of weights that share a storage are adjacent, in the optimizer's order. Clipped updates read the
coefficient, after the norms of all gradients (clipping.py); those of a scaled loss whether any gradient is
infinite (scaling.py). Early updates wait for neither (early.py).

Of several batches (sums.py) this is the last one's program. An update right after its gradient adds that to
the sum itself; others read the sum, to which the gradient is added as soon as it is there (`with_sums`), or
its average over processes (averages.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..devices.storage.blocks import size_bytes
from ..graphs.errors import InputError
from ..graphs.graph import Kind, Phase
from ..graphs.transformations.updates import When
from ..model.accumulated import SUM
from ..model.iteration import SCALE
from ..program.names import Names
from ..program.program import Call, Operation, Program, Ref, Setting, Storage, Value
from ..torch_support.torch_fakes import FakeTensorMode
from . import clipping, scaling
from .averages import after_next, averages
from .early import COEFFICIENT, INFINITE, early
from .norm_sums import NormStack, NormSums, stack
from .planned_optimizer import Rule, state_like
from .rules import if_finite
from .sums import FIRST, add, with_sum

STEP = Setting(0, 2.0)
"""Number of the weights' update, from 1; the example is one after the first."""


def with_sums(program: Program, rules: Mapping[str, Rule]) -> Program:
    """Return the program whose gradients are their sums over several batches, for parameters that have a
    rule.
    """
    writer, later = _Writer(program), dict[int, list[Operation]]()
    updated = [name for name in program.gradients if name in rules]
    for name, place in _complete(program, updated).items():
        later.setdefault(place, []).append(writer.add(name, rules[name]))
    return writer.program_with(later, writer.gradients)


def with_updates(
    program: Program,
    rules: Mapping[str, Rule],
    when: When,
    *,
    clip: bool = False,
    norms: NormSums | None = None,
    sums: bool = False,
    scaled: bool = False,
    divides: bool = False,
    waits: bool = True,
) -> Program:
    """Add the updates to a program.

    rules: by parameter. A gradient whose parameter has none stays a result.
    when: where in the iteration weights are updated.
    clip: clip by the norm of all gradients. norms: of those that are spread over ranks, None if none is.
    sums: each update adds its gradient to those of other batches.
    scaled: the gradients are of a loss times a scale, see scaling.py.
    divides: they are to be divided by that scale.
    waits: clipped or scaled updates wait for all gradients; otherwise they are early.

    Raises InputError if gradients are clipped or scaled and one of them has no update.
    """
    writer = _Writer(program, waits=waits)
    updated = {name: rule for name, rule in rules.items() if name in program.gradients}
    complete = _complete(program, updated)
    order = list(updated)
    if any(map(averages, program.operations)):
        # The newest average is read last: it is still under way.
        order.sort(key=_soonest(program, complete).__getitem__)
    made = {name: after_next(program, complete[name]) for name in order}
    later: dict[int, list[Operation]] = {}
    all_made = -1
    if sums:
        updated = {name: with_sum(rule) for name, rule in updated.items()}
    if (clip or scaled) and made:
        if left := [name for name in program.gradients if name not in updated]:
            raise InputError(
                f"{'clip_norm' if clip else 'scaler'}: {left[0]} has a gradient and is none of the "
                "optimizer's parameters: give it to the optimizer, or freeze it with requires_grad_(False)"
            )
        all_made = max(made.values())
        for name, place in made.items():
            own = later.setdefault(place, [])
            if scaled:
                own.append(writer.unscale(name, updated[name], divides=divides))
            if clip:
                own.append(writer.norm(name, updated[name]))
        if scaled:
            later[all_made].append(writer.found())
        if clip:
            # In one list with the last norm and the flag, after them.
            later[all_made].extend(writer.clip(norms))
    soonest = _soonest(program, made)
    for name in order:
        place = len(program.operations) - 1
        if when == "in-backward":
            place = max(soonest[name], all_made) if waits else soonest[name]
        later.setdefault(place, []).append(writer.update(name, updated[name]))
    left = {name: value for name, value in program.gradients.items() if name not in updated}
    return writer.program_with(later, left)


def updates_weights(operation: Operation) -> bool:
    """Tell whether the operation is an update: of all that changes in place only updates have settings."""
    return STEP in operation.call.arguments


def _complete(program: Program, names: Iterable[str]) -> dict[str, int]:
    """Return the last operation that contributes to the gradient, per parameter."""
    made: dict[int, int] = {}
    for index, operation in enumerate(program.operations):
        made.update(dict.fromkeys((*operation.writes, *operation.mutates), index))
    return {name: made[program.values[program.gradients[name]].storage] for name in names}


def _soonest(program: Program, complete: Mapping[str, int]) -> dict[str, int]:
    """Return the operation after which a weight can be updated, per parameter.

    Its gradient is complete then, and nothing else reads or changes the weight any more. Forward may change a
    weight itself (a clamp, a renormalised embedding): the trace writes such a value back at its end, and an
    update before that would be lost.

    Weights in one storage may overlap, so they are updated together, when the last of them can be.
    """
    used: dict[int, int] = {}
    for index, operation in enumerate(program.operations):
        # The last use replaces earlier ones.
        used.update(dict.fromkeys((*operation.reads, *operation.mutates), index))
    storages = {name: program.values[program.parameters[name]].storage for name in complete}
    for name, place in complete.items():
        used[storages[name]] = max(place, used.get(storages[name], -1))
    return {name: used[storage] for name, storage in storages.items()}


class _Writer:
    """Writer of the updated program: it appends states, norms and the coefficient to storages and values.

    gradients: what norms and updates read, by parameter: the sums if there are some, or unscaled ones.
    """

    def __init__(self, program: Program, *, waits: bool = True) -> None:
        self.program = program
        self.waits = waits
        self.storages = list(program.storages)
        self.values = list(program.values)
        self.states = dict(program.states)
        self.infinite: list[int] = []
        self.any_infinite: int | None = None
        self.norms: dict[str, int] = {}
        self.gradients = dict(program.gradients)
        self.total: int | None = None
        self.coefficient: int | None = None
        self.names = Names()
        self.operations = Names()
        self.mode = FakeTensorMode()
        for storage in program.storages:
            self.names.unique(storage.name)
        for operation in program.operations:
            self.operations.unique(operation.name)

    def program_with(self, later: Mapping[int, Sequence[Operation]], gradients: dict[str, int]) -> Program:
        """Return the program with the new operations.

        later: new operations, by the index of the one that they follow.
        gradients: the results that remain, by parameter.
        """
        operations = [
            each for place, one in enumerate(self.program.operations) for each in (one, *later.get(place, ()))
        ]
        return replace(
            self.program,
            storages=self.storages,
            values=self.values,
            operations=operations,
            gradients=gradients,
            states=self.states,
            norm=self.total,
            infinite=self.any_infinite,
        )

    def update(self, name: str, rule: Rule) -> Operation:
        weight, gradient = self.program.parameters[name], self.gradients[name]
        own = {SUM: rule._replace(dtype=rule.summed)}
        states = [self._state(name, state, own.get(state, rule)) for state in rule.states]
        settings = (rule.lr, STEP)
        arguments = (*map(Ref, (weight, gradient, *states)), *settings)
        # In this order: parts.py takes the sum, the last state, from the end.
        changed = dict.fromkeys(self.values[value].storage for value in (weight, *states))
        # What it changes is in `changed` alone, though it reads it too.
        target, reads, keywords = rule.target, [gradient], dict(rule.keywords)
        if not self.waits:
            keywords |= {"update": target.__name__, "infinite": INFINITE}
            keywords |= {} if self.coefficient is None else {"clip": COEFFICIENT}
            target = early
        elif self.coefficient is not None:
            reads.append(self.coefficient)
            keywords["clip"] = Ref(self.coefficient)
        if self.waits and self.any_infinite is not None:
            reads.append(self.any_infinite)
            keywords |= {"update": target.__name__, "infinite": Ref(self.any_infinite)}
            target = if_finite
        call = Call(target, arguments, keywords, (), several=False)
        return self._operation(
            f"{name}/update", Phase.UPDATE, weight=weight, call=call, reads=reads, changed=tuple(changed)
        )

    def add(self, name: str, rule: Rule) -> Operation:
        weight, gradient = self.program.parameters[name], self.program.gradients[name]
        total = self.gradients[name] = self._state(name, SUM, rule._replace(dtype=rule.summed))
        call = Call(add, (Ref(total), Ref(gradient), FIRST), {}, (), several=False)
        changed = (self.values[total].storage,)
        return self._operation(
            f"{name}/add", Phase.BACKWARD, weight=weight, call=call, reads=(gradient,), changed=changed
        )

    def unscale(self, name: str, rule: Rule, *, divides: bool) -> Operation:
        weight, scaled = self.program.parameters[name], self.program.gradients[name]
        storage, scale = self.values[scaled].storage, self.program.inputs[SCALE]
        layer = self.storages[self.values[weight].storage].layer
        # From here on the unscaled gradient is the parameter's, this one is an intermediate.
        self.storages[storage] = self.storages[storage]._replace(kind=Kind.GRADIENT)
        keywords: dict[str, Any] = {"divides": divides, "dtype": rule.dtype}
        with self.mode:
            made, infinite = scaling.unscale(self._fake(scaled), self._fake(scale), **keywords)
        self.gradients[name] = self._new(f"{name}.grad.unscaled", made, Kind.PARAMETER_GRADIENT, layer)
        self.infinite.append(self._new(f"{name}.grad.infinite", infinite, Kind.GRADIENT))
        outputs = (self.gradients[name], self.infinite[-1])
        call = Call(scaling.unscale, (Ref(scaled), Ref(scale)), keywords, outputs, several=True)
        return self._operation(f"{name}/unscale", Phase.BACKWARD, weight, call, (scaled, scale))

    def found(self) -> Operation:
        """Create the operation that collects whether any gradient is infinite, after all of them."""
        with self.mode:
            infinite = scaling.FOUND(*map(self._fake, self.infinite))
        self.any_infinite = self._new("infinite", infinite, Kind.GRADIENT)
        call = Call(scaling.FOUND, tuple(map(Ref, self.infinite)), {}, (self.any_infinite,), several=False)
        return self._operation("gradients/found", Phase.BACKWARD, None, call, self.infinite)

    def norm(self, name: str, rule: Rule) -> Operation:
        gradient = self.gradients[name]
        keywords: dict[str, Any] = {} if rule.summed is None else {"dtype": rule.summed}
        with self.mode:
            fake = clipping.norm(self._fake(gradient), **keywords)
        made = self.norms[name] = self._new(f"{name}.grad.norm", fake, Kind.GRADIENT)
        call = Call(clipping.norm, (Ref(gradient),), keywords, (made,), several=False)
        weight = self.program.parameters[name]
        return self._operation(f"{name}/norm", Phase.BACKWARD, weight, call, (gradient,))

    def clip(self, sums: NormSums | None) -> list[Operation]:
        """Create the operations of the norm and the coefficient, after all norms."""
        names, target = list(self.program.gradients), clipping.clip
        order = clipping.in_torchs_order([self.values[self.norms[name]].dtype for name in names])
        names, before = [names[place] for place in order], list[Operation]()
        norms = [self.norms[name] for name in names]
        if sums is not None:
            target, norms = (
                clipping.clip_stacked,
                [self._sum(one, sums, before) for one in sums.stacks(names)],
            )
        with self.mode:
            total, coefficient = target(1.0, *map(self._fake, norms))
        self.total = self._new("grad_norm", total, Kind.GRADIENT)
        self.coefficient = self._new("clip", coefficient, Kind.GRADIENT)
        made = (self.total, self.coefficient)
        call = Call(target, (clipping.MAX_NORM, *map(Ref, norms)), {}, made, several=True)
        return [*before, self._operation("gradients/clip", Phase.BACKWARD, None, call, norms)]

    def _sum(self, stacked: NormStack, sums: NormSums, operations: list[Operation]) -> int:
        """Return the norms in a stack, over all ranks, in one value.

        operations: to which those that make it are added.
        """
        own = [self.norms[name] for name in stacked.names]
        divisors = tuple(stacked.divisors)
        with self.mode:
            fake = stack(divisors, *map(self._fake, own))
        made = self._new("grad_norms", fake, Kind.GRADIENT)
        call = Call(stack, (divisors, *map(Ref, own)), {}, (made,), several=False)
        operations.append(self._operation("gradients/norms", Phase.BACKWARD, None, call, own))
        for group in stacked.groups:
            read, made = made, self._new("grad_norms", fake, Kind.GRADIENT)
            call = Call(sums.collective, (Ref(read), "sum", group), {}, (made,), several=False)
            operations.append(self._operation("gradients/sum", Phase.BACKWARD, None, call, (read,)))
        return made

    def _operation(
        self,
        name: str,
        phase: Phase,
        weight: int | None,
        call: Call,
        reads: Sequence[int],
        changed: tuple[int, ...] = (),
    ) -> Operation:
        """Create an operation.

        weight: the value that it updates, None if it is of all weights.
        reads: values.
        """
        layer = None if weight is None else self.storages[self.values[weight].storage].layer
        read = tuple(self.values[value].storage for value in reads)
        made = tuple(self.values[value].storage for value in call.outputs if value is not None)
        return Operation(
            name=self.operations.unique(name),
            phase=phase,
            layer=layer,
            call=call,
            reads=read,
            writes=made,
            mutates=changed,
            random=False,
        )

    def _state(self, name: str, state: str, rule: Rule) -> int:
        """Create a new resident in the form of a state."""
        weight = self.program.parameters[name]
        layer = self.program.storages[self.values[weight].storage].layer
        with self.mode:
            made = state_like(self._fake(weight), rule, state)
        self.states[name, state] = self._new(f"{name}.{state}", made, Kind.OPTIMIZER_STATE, layer)
        return self.states[name, state]

    def _fake(self, value: int) -> Tensor:
        form = self.values[value]
        return torch.empty_strided(form.shape, form.strides, dtype=form.dtype, device=form.device)

    def _new(self, name: str, made: Tensor, kind: Kind, layer: str | None = None) -> int:
        """Create a value in a separate storage, in the form of a tensor without data."""
        size = size_bytes(made, self.program.device)
        self.storages.append(Storage(self.names.unique(name), size, kind, layer))
        layout = (tuple(made.shape), tuple(made.stride()), 0, made.dtype, made.device)
        self.values.append(Value(len(self.storages) - 1, *layout))
        return len(self.values) - 1
