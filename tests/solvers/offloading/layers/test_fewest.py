"""The fewest to offload, by interpolation: against a search one by one, on made-up needs."""

from __future__ import annotations

from itertools import count
from math import inf
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from memplan.graphs.errors import InputError
from memplan.graphs.machine import Machine
from memplan.solvers.clock import Clock
from memplan.solvers.offloading.layers import fewest as searched
from memplan.solvers.offloading.layers.fewest import Policy, counts_of, fastest_of_fewest, fewest

ROOMY = 2**40
"""Bytes of a device limit from which on `simulate_residency` is asked for any schedule."""


def needs_of(random: Random, most: int) -> list[float]:
    """Bytes that fall with the number offloaded: evenly, or by leaps, and with none for the first few."""
    frees = random.choice((lambda: 10, lambda: random.choice((0, 1, 40)), lambda: random.randint(0, 9)))
    needs = [float(1000)]
    for _ in range(most):
        needs.append(needs[-1] - frees())
    unknown = random.choice((0, 0, random.randint(0, most)))
    return [inf] * unknown + needs[unknown:]


def pretend(patch: pytest.MonkeyPatch, needs: list[float], limit: float, asked: list[int]) -> None:
    """Let a residency be a number, which needs so many bytes and takes so many seconds."""

    def simulate(graph: object, machine: Machine, room: int, number: int) -> object:
        del graph
        if room > ROOMY:
            assert (machine.device_capacity, machine.host_capacity, machine.pinned) == (None, None, None)
            asked.append(number)
        if needs[number] == inf or needs[number] > room:
            return None
        return f"schedule {number}", SimpleNamespace(least_budget=needs[number], time=float(number))

    patch.setattr(searched, "simulate_residency", simulate)
    patch.setattr(searched, "device_limit", lambda problem: limit)


PROBLEM = cast("Any", SimpleNamespace(graph=None))
MACHINE = Machine(device_capacity=7, host_capacity=5, pinned=3)


@pytest.mark.parametrize("number", range(60))
def test_it_is_the_first_that_fits_and_few_are_tried(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    random = Random(number)
    most = random.choice((0, 1, 2, 7, 60))
    needs, asked = needs_of(random, most), list[int]()
    limit = random.choice([*needs, needs[-1] - 1, random.uniform(needs[-1], 1000)])
    pretend(monkeypatch, needs, limit, asked)
    counts = range(most + 1)
    wanted = next((each for each in counts if needs[each] <= limit), most)
    assert fewest(PROBLEM, MACHINE, counts, cast("Any", lambda each: each)) == wanted
    assert len(asked) == len({*asked}) <= 26  # 2 + 3 · log₂ 60 at most, none twice


def test_what_frees_evenly_is_found_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in range(410, 1000, 37):
        asked = list[int]()
        pretend(monkeypatch, [1000.0 - 10 * each for each in range(61)], limit, asked)
        fewest(PROBLEM, MACHINE, range(61), cast("Any", lambda each: each))
        assert len(asked) <= 5  # both ends, where interpolation points to, its neighbour


def test_the_requested_number_is_the_only_one() -> None:
    assert [*counts_of("x.layers", None, 3)] == [0, 1, 2, 3]
    assert [*counts_of("x.layers", 3, 3)] == [3]
    with pytest.raises(InputError, match=r"^x.layers must be at most 3, not 4$"):
        counts_of("x.layers", 4, 3)


def policies(places: list[int]) -> list[Policy]:
    return [
        Policy(f"policy {place}", range(place, place + 1), cast("Any", lambda each: each)) for place in places
    ]


def test_the_fastest_policy_is_chosen_and_the_clock_ends_the_tries_once_one_fits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Number 4 does not fit: it is no answer, however fast."""
    pretend(monkeypatch, [90.0, 80.0, 70.0, 60.0, inf], 85.0, [])
    expired = Clock(None, cancelled=lambda: True)
    for clock, places, chosen in (
        (Clock(None), [3, 1, 2, 4], 1),
        (expired, [3, 1], 3),
        (expired, [4, 0, 2, 1], 2),
    ):
        found = fastest_of_fewest("x", PROBLEM, MACHINE, policies(places), clock)
        assert (found.count, found.policy.name) == (chosen, f"policy {chosen}")
        assert (found.schedule, found.figures.time) == (f"schedule {chosen}", chosen)


def test_if_none_fits_all_are_reported_and_an_interruption_is_no_refusal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reported = list[list[int]]()

    def refuse(solver: str, problem: object, machine: Machine, tried: list[int]) -> Exception:
        reported.append(tried)
        return ValueError(f"{solver} is refused")

    monkeypatch.setattr(searched, "refused", refuse)
    pretend(monkeypatch, [90.0, 80.0], 70.0, [])
    with pytest.raises(ValueError, match="x is refused"):
        fastest_of_fewest("x", PROBLEM, MACHINE, policies([1, 0]), Clock(None))
    assert reported == [[1, 0]]

    calls = count()

    def interrupted(each: int) -> int:
        if next(calls):
            raise KeyboardInterrupt
        return each

    policy = Policy("stopped", range(1), cast("Any", interrupted))
    with pytest.raises(KeyboardInterrupt):
        fastest_of_fewest("x", PROBLEM, MACHINE, [policy], Clock(None))
