"""Greedy eviction in traced order: a first schedule for any graph, with no claim at all.

Goes through the stages (slots.py). A stage runs its own operation and, before it, whatever that needs and is
not resident any more. When a run does not fit, tensors are dropped, the smallest score first:

    score = (seconds to recompute it)^a / (bytes · (stages until its next use)^b)

This is the heuristic of dynamic tensor rematerialisation (Kirisame et al., ICLR 2021, arXiv:2006.09616), with
the next use, known here, instead of staleness. Four pairs (a, b) are tried. Training graphs of 100 operations
take a tenth of a second; if nearly all must be dropped in every stage, it is cubic.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator

from ...graphs.closure import closure
from ...graphs.graph import Graph
from ...planner.schedule.sequence import Run
from .slots import DeviceVariant, last_stages, variants_of

POWERS = ((1.0, 1.0), (0.0, 1.0), (1.0, 0.0), (0.5, 0.5))
"""Pairs (a, b) of powers in the score above."""

There = dict[int, set[int]]
"""Tensor -> the producers whose contributions are on the device."""


def sequences(graph: Graph, limit: int, proceed: Callable[[], bool]) -> Iterator[list[Run]]:
    """Yield a sequence for each pair of powers that stays within `limit` bytes, until `proceed` is false."""
    eviction = _Eviction(graph, limit)
    for powers in POWERS:
        runs = eviction.sequence(powers, proceed)
        if runs is not None:
            yield runs


class _Eviction:
    def __init__(self, graph: Graph, limit: int) -> None:
        count = len(graph.operations)
        resident: list[bool] = graph.resident.tolist()
        self.sizes: list[int] = graph.tensors.bytes.tolist()
        self.free = limit - sum(size for size, always in zip(self.sizes, resident, strict=True) if always)
        self.variants = [variants_of(graph, k) for k in range(count)]
        self.last = last_stages(graph)
        self.reads = [[x for x in inputs if not resident[x]] for inputs in graph.input_lists]
        self.producers = [set(row) for row in graph.producers.lists()]
        self.users: list[list[int]] = [[] for _ in self.sizes]
        for k, reads in enumerate(self.reads):
            for x in reads:
                self.users[x].append(k)
        self.results = set(graph.results)

    def sequence(self, powers: tuple[float, float], proceed: Callable[[], bool]) -> list[Run] | None:
        """Return the sequence for these powers; None if it gets stuck."""
        self.powers, self.proceed = powers, proceed
        there: There = {}
        runs: list[Run] = []
        for stage in range(len(self.variants)):
            reached = self._stage(stage, there)
            if reached is None:
                return None
            there, more = reached
            runs += more
        return runs

    def _stage(self, stage: int, start: There) -> tuple[There, list[Run]] | None:
        """Run one stage; return what is resident after it, and its runs. None if it gets stuck.

        When a run does not fit, the stage starts over with one tensor less at its start.
        """
        start = dict(start)
        while self.proceed():
            plan = self._missing(self.reads[stage], start, stage)
            if plan is None:
                return None
            there = {x: set(parts) for x, parts in start.items()}
            runs = self._run(stage, sorted(plan | {stage}), there)
            if runs is not None:
                return there, runs
            victim = next(self._victims(stage, start, set()), None)
            if victim is None:
                break
            del start[victim]
        return None

    def _run(self, stage: int, plan: list[int], there: There) -> list[Run] | None:
        """Run the planned operations, dropping what is in the way; changes `there`. None if one can't run."""
        # Tensor -> the last run of the plan that reads it, as the plan is in order.
        until = {x: k for k in plan for x in self.reads[k]}
        runs: list[Run] = []
        for k in plan:
            keep = {x for x in there if until.get(x, -1) >= k}
            for variant in self.variants[k]:
                if self._may_skip(variant, k, there, until) and self._make_room(
                    variant, k, stage, there, keep
                ):
                    break
            else:
                return None
            runs.append((k, variant.mode))
            for x in variant.writes:
                alone = x not in there and k < stage and self.producers[x] != {k} and until.get(x, -1) < k
                if (self.users[x] or x in self.results) and not alone:
                    there.setdefault(x, set()).add(k)  # what is alone will not be complete: it goes at once
        return runs

    def _may_skip(self, variant: DeviceVariant, k: int, there: There, until: dict[int, int]) -> bool:
        """Tell whether the variant may leave out what it does not write.

        That is resident already, or it is not needed in this stage and can be made later.
        """
        return all(
            k in there.get(x, ()) or (until.get(x, -1) < k and x not in self.results and self.last[k] > k)
            for x in set(self.variants[k][0].writes) - set(variant.writes)
        )

    def _make_room(self, variant: DeviceVariant, k: int, stage: int, there: There, keep: set[int]) -> bool:
        # A contribution that is in already is made once more in memory of its own, and dropped.
        new = [x for x in variant.writes if x not in there or (k in there[x] and self.producers[x] != {k})]
        need = variant.workspace + sum(self.sizes[x] for x in (*new, *there)) - self.free
        if need <= 0:
            return True
        for victim in self._victims(stage, there, keep | set(variant.writes)):
            del there[victim]
            need -= self.sizes[victim]
            if need <= 0:
                return True
        return False

    def _victims(self, stage: int, there: There, keep: set[int]) -> Iterator[int]:
        """Yield tensors that may be dropped, the smallest score first; `there` shrinks meanwhile."""
        scores: list[tuple[float, int]] = []
        for x, parts in there.items():
            if x in keep or x in self.results or not self.sizes[x] or parts != self.producers[x]:
                continue
            # Without a next use: as if it were after the end.
            following = self._next_use(x, stage) or len(self.variants)
            missing = self._missing([x], there, stage, without=x)
            # What can't be recomputed is not dropped if it is needed: `_can_do_without` decides.
            seconds = 0.0 if missing is None else sum(self.variants[k][0].time for k in missing)
            a, b = self.powers
            scores.append((seconds**a / (self.sizes[x] * (following - stage) ** b), x))
        for _score, x in sorted(scores):
            # Asked one by one: it depends on what has been dropped before.
            if self._can_do_without(x, stage, there):
                yield x

    def _can_do_without(self, x: int, stage: int, there: There) -> bool:
        """Tell whether x can be recomputed for its next use; or has none, and no dropped tensor needs it."""
        if following := self._next_use(x, stage):
            return self._missing([x], there, following, without=x) is not None
        if self._missing([x], there, stage, without=x) is not None:
            return True
        dropped = [
            y
            for y in range(len(self.sizes))
            # Made in full before this stage, and dropped since.
            if y not in there and max(self.producers[y], default=stage) < stage
        ]
        return all(
            self._missing([y], there, following, without=x) is not None
            for y in dropped
            if (following := self._next_use(y, stage))
        )

    def _next_use(self, x: int, stage: int) -> int:
        """Return the stage of the next first run that reads x; 0 if none."""
        users = self.users[x]
        place = bisect_right(users, stage)
        return users[place] if place < len(users) else 0

    def _missing(self, tensors: list[int], there: There, stage: int, without: int = -1) -> set[int] | None:
        """Return the operations to recompute to complete `tensors`; None if one may not run any more."""

        def producers(x: int) -> set[int]:
            return self.producers[x] - there.get(x, set()) if x != without else self.producers[x]

        def before(operation: int) -> Iterator[int]:
            return (producer for x in self.reads[operation] for producer in producers(x))

        runs = closure((producer for x in tensors for producer in producers(x)), before)
        return None if any(self.last[producer] < stage for producer in runs) else runs
