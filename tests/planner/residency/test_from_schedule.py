"""A schedule's decisions can be read back from it."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest
from layered_training import LINKED, random_runs, training
from memplan.graphs.draft import Draft
from memplan.graphs.machine import Link, Memory, Tier
from memplan.planner.residency.from_schedule import recover_residency
from memplan.planner.residency.lifetimes import find_lifetimes
from memplan.planner.residency.prefetch_placement import build_schedule, place_prefetches
from memplan.planner.residency.residency import Residency, TensorUse
from memplan.planner.schedule.schedule import Schedule, Verb, compute, delete, offload, prefetch
from memplan.planner.schedule.sequence import in_default_mode
from memplan.planner.simulator.simulate import simulate
from strategies import Case
from two_replays import disagreement


@pytest.mark.sampled(78)
@pytest.mark.parametrize("seed", range(120))
def test_there_and_back(seed: int) -> None:
    random = Random(seed)
    graph = training(random.randint(1, 4), frozen=random.randint(0, 3), result=random.random() < 0.3)
    runs = random_runs(graph, random)
    away: dict[TensorUse, Memory] = {}
    leave: dict[TensorUse, int] = {}
    back: dict[TensorUse, int] = {}
    read: dict[TensorUse, int] = {}
    for lifetime in find_lifetimes(graph, runs):
        uses = [use.moment // 2 for use in lifetime.uses if use.memory == Memory.DEVICE]
        for after, before in zip(uses, [*uses[1:], *(use + len(runs) for use in uses[:1])], strict=True):
            if lifetime.persistent and random.random() < 0.5:
                away[lifetime.tensor, after] = Memory.HOST
                left = (
                    random.randint(after + 1, min(before, len(runs))) if random.random() < 0.5 else after + 1
                )
                leave[lifetime.tensor, after] = left
                if random.random() < 0.5 and not any(use.memory == Memory.HOST for use in lifetime.uses):
                    back[lifetime.tensor, before % len(runs)] = random.randint(left, before) % len(runs)
            elif (
                not graph.resident[lifetime.tensor]
                and after + 1 < before < len(runs)
                and random.random() < 0.5
            ):
                away[lifetime.tensor, after] = Memory.DISK
                if random.random() < 0.7:
                    fetched = random.randint(after + 1, before)
                    back[lifetime.tensor, before] = fetched
                    read[lifetime.tensor, before] = random.randint(after + 1, fetched)
    schedule = build_schedule(graph, Residency(runs, away, leave, back, read))
    simulate(graph, schedule, machine=LINKED)
    found = recover_residency(graph, schedule)
    assert list(found.runs) == runs
    recomputed = build_schedule(graph, found)
    assert list(recomputed) == list(schedule)
    assert recomputed.initial == schedule.initial


@pytest.mark.scripts
@pytest.mark.parametrize("memories", [4, 5])
def test_there_and_back_through_many_memories(memories: int) -> None:
    """Decisions that name any memory of a row give schedules that both simulators take, whose copies go as
    deep as decided and no deeper. Where persistent tensors go to the host at most, what is recovered is a
    schedule that is as deep."""
    slow = Link(2.0, 0.25)
    tiers = tuple(Tier(f"tier{place}", None, slow, slow) for place in range(3, memories))
    machine = replace(LINKED, deeper=tiers)
    reached = 0
    for seed in range(240):
        random = Random(seed)
        graph = training(random.randint(1, 4), frozen=random.randint(0, 3), result=random.random() < 0.3)
        runs = random_runs(graph, random)
        offloaded: dict[TensorUse, int] = {}
        for lifetime in find_lifetimes(graph, runs):
            uses = [use.moment // 2 for use in lifetime.device_uses]
            for after, before in pairwise([*uses, *(use + len(runs) for use in uses[:1])]):
                fits = after + 1 < before < len(runs) and not graph.resident[lifetime.tensor]
                if (fits or lifetime.persistent) and random.random() < 0.5:
                    # Each copy further down stands a moment later, so a deep one needs runs in between.
                    deepest = min(memories - 1, before - after)
                    deepest = 1 if seed % 2 and lifetime.persistent else deepest
                    offloaded[lifetime.tensor, after] = random.randint(1, deepest)
        found = place_prefetches(graph, machine, 2**40, Residency(runs, offloaded))
        if found is None:  # a tensor that would start in two memories
            continue
        schedule, figures = found
        assert disagreement(Case(graph, schedule, None, machine)) is None
        deepest = max(offloaded.values(), default=0)
        if deepest > Memory.HOST:
            assert schedule.memories == deepest + 1, seed
            assert [peak > 0 for peak in figures.peaks] == [place <= deepest for place in range(memories)]
        reached += deepest == memories - 1
        if seed % 2:
            schedule = build_schedule(graph, Residency(runs, offloaded))
            recomputed = build_schedule(graph, recover_residency(graph, schedule))
            assert recomputed.initial == schedule.initial
            assert recomputed.memories == schedule.memories
            simulate(graph, recomputed, machine=machine)
    assert reached > 30


def test_one_write_to_the_disk_serves_two_intervals() -> None:
    """The second is told by its read alone."""
    draft = Draft("used three times")
    x, others = draft.tensor("x", 8), [draft.tensor(f"y{i}", 4) for i in range(9)]
    draft.operation("make", time=1, writes=[x])
    for i, y in enumerate(others):
        used = [x] if i in (3, 8) else []
        draft.operation(f"o{i}", time=1, reads=[*used, *others[i - 1 : i]], writes=[y])
    graph = draft.graph(others[-1:])
    away = {(x, 0): Memory.DISK, (x, 4): Memory.DISK}
    given = Residency(in_default_mode(range(10)), away, {}, {(x, 9): 8}, {(x, 4): 3, (x, 9): 7})
    schedule = build_schedule(graph, given)
    simulate(graph, schedule, machine=LINKED)
    assert [(verb, where) for verb, target, where in schedule.rows() if target == x and verb > 1] == [
        (Verb.OFFLOAD, Memory.HOST),
        (Verb.OFFLOAD, Memory.DISK),
        *[(Verb.PREFETCH, Memory.HOST), (Verb.PREFETCH, Memory.DEVICE)] * 2,
    ]
    found = recover_residency(graph, schedule)
    assert found.offloaded == away
    assert (found.prefetch_slots, found.read_slots) == ({(x, 4): 4, (x, 9): 8}, given.read_slots)


def test_of_two_fetches_before_a_use_the_last_one_serves_it() -> None:
    """The first copy is deleted unused: the tensor need not be there that early."""
    draft = Draft("fetched twice")
    x, others = draft.tensor("x", 8), [draft.tensor(f"y{i}", 4) for i in range(5)]
    draft.operation("make", time=1, writes=[x])
    for i, y in enumerate(others):
        draft.operation(f"o{i}", time=1, reads=[*([x] if i == 4 else []), *others[i - 1 : i]], writes=[y])
    graph = draft.graph(others[-1:])
    steps = [compute(0), offload(x), delete(x), compute(1), prefetch(x), delete(x)]
    steps += [*map(compute, range(2, 5)), prefetch(x), compute(5)]
    schedule = Schedule.of(steps)
    simulate(graph, schedule, machine=LINKED)
    found = recover_residency(graph, schedule)
    assert (found.offloaded, found.prefetch_slots) == ({(x, 0): Memory.HOST}, {(x, 5): 5})
