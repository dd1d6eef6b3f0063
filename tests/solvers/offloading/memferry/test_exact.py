"""MemFerry's choices against brute force in its own model, the published algorithm's known distance
included.
"""

from __future__ import annotations

from itertools import product
from math import inf
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memplan.solvers.offloading.memferry.estimate import PUBLISHED, Treatment, estimate, forward_estimate
from memplan.solvers.offloading.memferry.exact import best_choice
from memplan.solvers.offloading.memferry.gradients import kept_gradients
from memplan.solvers.offloading.memferry.greedy import Forward, greedy
from memplan.solvers.offloading.memferry.layers import Costs

INSTANCES = 200


def instance(seed: int, most: int = 6) -> list[Costs]:
    random = Random(seed)

    def layer() -> Costs:
        forward, fetch = random.uniform(0.1, 1.5), random.uniform(0.1, 3.0)
        return Costs(
            fetch,
            forward,
            inf if random.random() < 0.1 else forward + random.uniform(0.0, 3.0),
            2 * forward,
            2 * forward * random.uniform(1.0, 1.6),
            random.choice([0.0, random.random()]),
            random.choice([0.0, random.random()]),
            random.randint(1, 9),
        )

    return [layer() for _ in range(random.randint(2, most))]


def possible(costs: list[Costs], treatments: tuple[Treatment, ...]) -> bool:
    fetched = (Treatment.GFGB, Treatment.TWICE)
    return all(
        treatment in fetched or layer.direct_forward < inf
        for layer, treatment in zip(costs, treatments, strict=True)
    )


def choices(costs: list[Costs], among: tuple[Treatment, ...] = PUBLISHED) -> list[tuple[Treatment, ...]]:
    return [treatments for treatments in product(among, repeat=len(costs)) if possible(costs, treatments)]


def on_device(costs: list[Costs], treatments: tuple[Treatment, ...] | list[Treatment]) -> int:
    stay = (Treatment.GFGB, Treatment.DFGB)
    return sum(layer.size for layer, treatment in zip(costs, treatments, strict=True) if treatment in stay)


def forward_by_events(costs: list[Costs], treatments: tuple[Treatment, ...]) -> float:
    """The model told another way: a computation starts when all before it, and all fetches up to it, are
    over.
    """
    fetches = [
        layer.fetch if treatment == Treatment.GFGB else 0.0
        for layer, treatment in zip(costs, treatments, strict=True)
    ]
    lengths = [
        (layer.forward if treatment == Treatment.GFGB else layer.direct_forward) + layer.between
        for layer, treatment in zip(costs, treatments, strict=True)
    ]
    starts = [i for i, treatment in enumerate(treatments) if treatment == Treatment.GFGB]
    return max([sum(lengths), *(sum(fetches[: i + 1]) + sum(lengths[i:]) for i in starts)])


def test_the_forward_estimate_is_the_longest_path() -> None:
    for seed in range(50):
        costs = instance(seed)
        for treatments in choices(costs, (Treatment.GFGB, Treatment.DHA)):
            assert forward_estimate(costs, treatments)[0] == pytest.approx(
                forward_by_events(costs, treatments)
            )


def test_three_layers_by_hand() -> None:
    """All fetched: the link is the bottleneck, 3 + 3 + 3 then 1, then 6 backward.
    The first from the host (2): fetches end at 3 and 6, forward at 7, backward with direct access takes 7.
    The last one fetched alone: forward ends at 5; the others come back at 6 and 9, in time for 7 and 9."""
    costs = [Costs(3, 1, 2, 2, 3, size=1)] * 3
    assert estimate(costs, [Treatment.GFGB] * 3) == 10 + 6
    assert estimate(costs, [Treatment.DHA, Treatment.GFGB, Treatment.GFGB]) == 7 + 7
    assert estimate(costs, [Treatment.DFGB, Treatment.GFGB, Treatment.GFGB]) == 7 + 6
    assert estimate(costs, [Treatment.DHA] * 3) == 6 + 9
    best = [Treatment.DFGB, Treatment.DFGB, Treatment.GFGB]
    assert estimate(costs, best) == min(estimate(costs, treatments) for treatments in choices(costs)) == 11
    found = best_choice(costs)
    assert found is not None
    assert found.seconds == 11


def test_algorithm_1_counts_its_own_time_right_and_stays_near_the_optimum() -> None:
    ratios: list[float] = []
    for seed in range(INSTANCES):
        costs = instance(seed)
        forward = Forward(costs)
        seconds, link = forward_estimate(costs, forward.treatments)
        assert forward.total == pytest.approx(seconds)
        assert forward.spare == pytest.approx(seconds - link)
        best = min(
            forward_estimate(costs, treatments)[0]
            for treatments in choices(costs, (Treatment.GFGB, Treatment.DHA))
        )
        ratios.append(seconds / best)
    assert min(ratios) >= 1 - 1e-12
    assert sum(ratios) / len(ratios) < 1.03
    assert max(ratios) > 1.001, "backtracking is a heuristic: a mean of 1 means that the oracle is broken"


def test_the_program_is_the_optimum_of_all_choices() -> None:
    greedy_ratios: list[float] = []
    for seed in range(INSTANCES):
        costs = instance(seed)
        best = min(estimate(costs, treatments) for treatments in choices(costs))
        start = greedy(costs)
        found = best_choice(costs, known=start)
        assert found is not None
        assert found.exact
        assert found.seconds == pytest.approx(best)
        assert estimate(costs, found.treatments) == pytest.approx(found.seconds)
        assert possible(costs, tuple(start))
        greedy_ratios.append(estimate(costs, start) / best)
    assert min(greedy_ratios) >= 1 - 1e-12
    assert sum(greedy_ratios) / len(greedy_ratios) < 1.03


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), room=st.integers(0, 40), twice=st.booleans())
def test_within_a_room_for_weights_too(seed: int, room: int, twice: bool) -> None:
    costs = instance(seed, most=5)
    among = choices(costs, tuple(Treatment) if twice else PUBLISHED)
    fitting = [estimate(costs, treatments) for treatments in among if on_device(costs, treatments) <= room]
    found = best_choice(costs, room=room, twice=twice)
    if not fitting:
        assert found is None
        return
    assert found is not None
    assert on_device(costs, found.treatments) <= room
    assert found.seconds == pytest.approx(min(fitting))


def test_with_few_states_the_choice_is_no_longer_called_exact() -> None:
    costs = [layer for seed in range(20, 26) for layer in instance(seed)]
    start = greedy(costs)
    exact, rough = best_choice(costs, known=start), best_choice(costs, known=start, states=1)
    assert exact is not None
    assert rough is not None
    assert exact.exact
    assert not rough.exact
    assert exact.seconds <= rough.seconds * (1 + 1e-12) <= estimate(costs, start) * (1 + 1e-9)
    stopped = best_choice(costs, known=start, proceed=lambda: False)
    assert stopped is not None
    assert stopped.treatments == start
    assert not stopped.exact


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 30), st.integers(-5, 20)), max_size=9),
    st.integers(0, 120),
)
def test_kept_gradients_are_the_best_subset(gradients: list[tuple[int, int]], room: int) -> None:
    sizes, gains = [size for size, _ in gradients], [float(gain) for _, gain in gradients]
    kept = kept_gradients(sizes, gains, room)
    assert sum(sizes[i] for i in kept) <= room
    best = max(
        sum(gain for gain, taken in zip(gains, subset, strict=True) if taken)
        for subset in product([False, True], repeat=len(sizes))
        if sum(size for size, taken in zip(sizes, subset, strict=True) if taken) <= room
    )
    assert sum(gains[i] for i in kept) == best
