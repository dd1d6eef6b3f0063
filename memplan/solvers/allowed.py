"""Techniques that a problem allows, and the problem without the others, which solvers and bounds get.

    Problem(graph, budget, machine, allow=("recompute",))
      ──restrict──▶ the same graph and machine: no links, no variants that use the host ──▶ solver, bounds
      ◀─original── schedule

With a colon a technique is allowed for some tensors alone: `offload:states`. Tensors of other kinds stay on
the device, which the simulator checks; solvers have `stays` of the graph for it. Recomputation is of forward
(`recompute:activations`) or of backward operations (`recompute:gradients`).

Variants that no schedule on the machine can run are left out too, whatever is allowed (planner/variants.py).

Solvers need not know of it: what they may not do is not there. Variants of operations that are left out would
change the numbers of those after them, so `original` gives a schedule the numbers of the whole graph, and
`restricted` the other way round.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import get_args

import numpy as np

from ..graphs.errors import InputError
from ..graphs.graph import Graph, Kind, Mode, Phase
from ..graphs.machine import Links, Machine
from ..planner.bounds import minimum_memory
from ..planner.budget import spelled
from ..planner.schedule.schedule import DEFAULT_MODE, Schedule, Verb
from ..planner.variants import host_bytes, keep_variants, runnable_variants, used_on_host
from .problem import InfeasibleError, NotAcceptedError, Problem
from .techniques import Technique, technique_of

WORDS: tuple[Technique, ...] = get_args(Technique)

TECHNIQUES: tuple[Technique, ...] = tuple(word for word in WORDS if ":" not in word)

_BY_NAME: Mapping[str, Technique] = {word: word for word in WORDS}

_PARTS: Mapping[Technique, tuple[Technique, ...]] = {
    "recompute": ("recompute:activations", "recompute:gradients"),
    "offload": ("offload:activations", "offload:weights", "offload:gradients", "offload:states"),
}
"""Per technique that has them, its words for some tensors alone."""

_KINDS: Mapping[Technique, tuple[Kind, ...]] = {
    "offload:activations": (Kind.ACTIVATION,),
    "offload:weights": (Kind.PARAMETER, Kind.BUFFER),
    "offload:gradients": (Kind.GRADIENT, Kind.PARAMETER_GRADIENT),
    "offload:states": (Kind.OPTIMIZER_STATE,),
}
"""Kinds of the tensors that each word lets leave the device."""

_OF_UPDATES: tuple[Technique, ...] = ("offload:weights", "offload:gradients", "offload:states")
"""Words without which no update runs on the host: its operands are there."""


def parse_allow(words: str | Iterable[str] | None) -> tuple[Technique, ...] | None:
    """Return the techniques named, in the order of WORDS; None for all.

    A technique for all tensors stands for its parts.

    words: names, or one text with commas between them.

    Raises InputError, one line.
    """
    if words is None:
        return None
    names = words.split(",") if isinstance(words, str) else [*words]
    found = _ordered({_parse_word(name) for name in names if name != ""})
    parts, through = _whole(found), "its tensors pass through host memory, allow both"
    if "disk" in found and parts.isdisjoint(_PARTS["offload"]):
        raise InputError(f"'disk' without 'offload': {through}")
    if "host-updates" in found and (missing := [word for word in _OF_UPDATES if word not in parts]):
        word = "offload" if parts.isdisjoint(_PARTS["offload"]) else ", ".join(missing)
        raise InputError(f"'host-updates' without {word!r}: {through}")
    return None if {*found} == {*TECHNIQUES} else found


def _parse_word(name: str) -> Technique:
    text = str(name).strip()
    if text in _BY_NAME:
        return _BY_NAME[text]
    known = next((row for word, row in _PARTS.items() if text.startswith(f"{word}:")), TECHNIQUES)
    close = get_close_matches(text, known, n=1)
    hint = f", did you mean {close[0]!r}?" if close else ""
    raise InputError(f"{text!r} is not one of {', '.join(known)}{hint}")


def _whole(words: Iterable[Technique]) -> set[Technique]:
    """Return the words with techniques in place of which their parts stand."""
    return {part for word in words for part in _PARTS.get(word, (word,))}


def _ordered(words: Iterable[Technique]) -> tuple[Technique, ...]:
    """Return the words in the order of WORDS, a technique in place of all its parts."""
    parts = _whole(words)
    for word, row in _PARTS.items():
        if parts.issuperset(row):
            parts = {*parts.difference(row), word}
    return tuple(word for word in WORDS if word in parts)


@dataclass(frozen=True)
class Restriction:
    """A problem without the techniques that it does not allow.

    whole: the problem as it was stated.
    problem: the same one, whose graph and machine have only what is allowed.
    kept: per operation that lost variants, the numbers (from 1) of those that it has left.
    """

    whole: Problem
    problem: Problem
    kept: Mapping[int, tuple[int, ...]]

    @property
    def changes(self) -> bool:
        """Tell whether the problem would have had more schedules."""
        return self.problem.allow is not None

    def original(self, schedule: Schedule) -> Schedule:
        """Return a schedule of the restricted graph with the whole graph's numbers of variants."""
        return _renumbered(schedule, {o: dict(enumerate(row, 1)) for o, row in self.kept.items()})

    def restricted(self, schedule: Schedule) -> Schedule:
        """Return a schedule of the whole graph with the restricted graph's numbers of variants.

        Raises InputError if it runs a variant that is left out.
        """
        numbers = {o: {number: k for k, number in enumerate(row, 1)} for o, row in self.kept.items()}
        try:
            return _renumbered(schedule, numbers)
        except KeyError:
            raise InputError(
                "the start is no schedule of this graph and machine: it runs an operation in a variant that "
                "can't run there"
            ) from None

    def explain(self, refusal: InfeasibleError) -> None:
        """Add to an error what is allowed, and which technique might find a schedule."""
        if not self.changes:
            return
        allowed = self.problem.allow or ()
        refusal.restrict(allowed)
        wider = [_ordered({*allowed, word}) for word in self._missing()]
        ways = [way for way in wider if self._may_fit(way)]
        if not ways and self._may_fit(TECHNIQUES):
            ways = [TECHNIQUES]
        if ways:
            refusal.advise(f"there may be one with allow={' or '.join(repr(','.join(way)) for way in ways)}")

    def not_accepted(self, error: NotAcceptedError) -> NotAcceptedError:
        """Return the error of a solver that lacks what it needs, with what the problem does not allow."""
        clauses = [str(error), *self._without_room()]
        if missing := self._missing():
            clauses.append(f"allow= leaves out {', '.join(missing)}")
        return NotAcceptedError("; ".join(clauses)) if len(clauses) > 1 else error

    def _without_room(self) -> Iterator[str]:
        """Yield the first operation whose variants on the CPU have too little host memory."""
        graph, machine = self.whole.graph, _machine(self.whole) or Machine()
        for operation, row in self.kept.items():
            numbered = enumerate(graph.operations.modes[operation], 1)
            left = [mode for number, mode in numbered if number not in row and mode.on_host]
            size = min((host_bytes(graph, operation, mode) for mode in left), default=0)
            if machine.host_capacity is not None and size > machine.host_capacity:
                name, there = graph.operations.name[operation], spelled(machine.host_capacity)
                yield f"on the CPU {name} needs {spelled(size)} of host memory; the machine has {there}"
                return

    def _missing(self) -> list[Technique]:
        """Return the techniques that are not allowed, and would each add something alone."""
        allowed, own = self.problem.allow, _means(self.problem)
        if allowed is None:
            return []
        some, parts = {technique_of(word) for word in allowed}, _whole(allowed)
        able = list[Technique]()
        for word, row in _PARTS.items():
            # Of a technique that is allowed for some tensors, the parts that are left out.
            able.extend([word] if word not in some else (part for part in row if part not in parts))
        if "offload" in some:
            able.append("disk")
        if parts.issuperset(_OF_UPDATES):
            able.append("host-updates")
        return [word for word in able if _means(self._with({*allowed, word})) != own]

    def _may_fit(self, allowed: tuple[Technique, ...]) -> bool:
        """Tell whether the budget is not below the minimum memory with these techniques."""
        wider = self._with(allowed)
        return _means(wider) != _means(self.problem) and (
            minimum_memory(wider.graph, wider.machine) <= wider.budget
        )

    def _with(self, allowed: Iterable[Technique]) -> Problem:
        return restrict(replace(self.whole, allow=_ordered(allowed))).problem


def restrict(problem: Problem) -> Restriction:
    """Return the problem without the techniques that it does not allow.

    Raises InputError for an unknown one.
    """
    allowed = parse_allow(problem.allow)
    if allowed != problem.allow:
        problem = replace(problem, allow=allowed)
    machine, graph = _machine(problem), problem.graph
    if machine is not None and allowed is not None:
        machine = _restricted_machine(machine, allowed)
    if allowed is not None:
        graph = _restricted_graph(graph, _whole(allowed))
    modes = graph.operations.modes
    numbers = {o: _kept(graph, o, allowed) for o in modes}
    runs = runnable_variants(keep_variants(graph, numbers), machine)
    numbers = {o: tuple(row[k - 1] for k in runs.get(o, ())) for o, row in numbers.items()}
    kept = {o: row for o, row in numbers.items() if len(row) < len(modes[o])}
    graph = keep_variants(graph, numbers)
    if allowed is None and graph is problem.graph:
        return Restriction(problem, problem, {})
    return Restriction(problem, replace(problem, graph=graph, machine=machine), kept)


def _renumbered(schedule: Schedule, numbers: Mapping[int, Mapping[int, int]]) -> Schedule:
    """Return the schedule with other numbers of variants. Raises KeyError for one that has none.

    numbers: per operation, the number of each of its variants.
    """
    if not numbers:
        return schedule
    wheres = schedule.wheres.copy()
    runs = (schedule.verbs == Verb.COMPUTE) & (wheres != DEFAULT_MODE)
    for step in np.flatnonzero(runs).tolist():
        if (row := numbers.get(int(schedule.targets[step]))) is not None:
            wheres[step] = row[int(wheres[step])]
    return replace(schedule, wheres=wheres)


def _machine(problem: Problem) -> Machine | None:
    return problem.machine or problem.graph.machine


def _means(problem: Problem) -> tuple[object, ...]:
    """Return what techniques change in a problem, to be compared."""
    machine, operations = _machine(problem) or Machine(), problem.graph.operations
    repeated, stays = operations.recompute.tobytes(), problem.graph.tensors.stays
    return machine.links, machine.deeper, operations.modes, repeated, stays


def _restricted_graph(graph: Graph, parts: set[Technique]) -> Graph:
    """Return the graph without recomputation, and with tensors that stay, as the parts of techniques say.

    Nothing need stay if nothing may leave at all: then there is no link.
    """
    operations, tensors = graph.operations, graph.tensors
    backward = operations.phase >= Phase.BACKWARD
    recompute = operations.recompute.copy()
    for word, these in (("recompute:activations", ~backward), ("recompute:gradients", backward)):
        if word not in parts:
            recompute[these] = False
    if (recompute != operations.recompute).any():
        graph = replace(graph, operations=replace(operations, recompute=recompute))
    kept = [kind for word, kinds in _KINDS.items() if word not in parts for kind in kinds]
    if kept and not parts.isdisjoint(_KINDS):
        # Spread tensors go to the peers, not to the host.
        stays = np.flatnonzero(np.isin(tensors.kind, kept) & ~graph.spread).tolist()
        graph = replace(graph, tensors=replace(tensors, stays=frozenset(stays)))
    return graph


def _restricted_machine(machine: Machine, allowed: tuple[Technique, ...]) -> Machine:
    """Return the machine without links to memories that may not be used.

    They have no capacity: a tensor that nothing reads could start in one otherwise.
    """
    if "offload" not in map(technique_of, allowed):
        return Machine(
            machine.device_capacity,
            host_capacity=0,
            disk_capacity=0,
            links=Links(peers=machine.links.peers),
            updates=machine.updates,
            shared=machine.shared,
            joint_rates=machine.joint_rates,
        )
    if "disk" not in allowed:
        links = Links(machine.links.d2h, machine.links.h2d, peers=machine.links.peers)
        return replace(machine, links=links, disk_capacity=0, deeper=())
    return machine


def _kept(graph: Graph, operation: int, allowed: tuple[Technique, ...] | None) -> tuple[int, ...]:
    """Return the numbers (from 1) of the variants of an operation that are allowed."""
    variants, stays = graph.operations.modes[operation], graph.tensors.stays
    if allowed is None:
        return tuple(range(1, len(variants) + 1))

    def may_run(mode: Mode) -> bool:
        if not mode.uses_host:
            return True
        if "offload" not in map(technique_of, allowed) or (mode.on_host and "host-updates" not in allowed):
            return False
        return stays.isdisjoint(used_on_host(graph, operation, mode))

    return tuple(number for number, mode in enumerate(variants, 1) if may_run(mode))
