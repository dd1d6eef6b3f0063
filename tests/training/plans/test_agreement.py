"""Ranks that make other calls than each other are refused on all of them, in one line that says who does what."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any, cast

import pytest
import torch
from memplan.devices.sharded.ranks import Ranks
from memplan.graphs.errors import MismatchError
from memplan.model.iteration import Purpose
from memplan.training.plans.agreement import Agreement, Found, SharedCall

RANKS = 3


class Threads:
    """Ranks that are threads of this process."""

    def __init__(self) -> None:
        self._barrier, self._rows = Barrier(RANKS, timeout=10), [cast("Any", None)] * RANKS

    def rank(self, own: int) -> Ranks:
        class Rank:
            def gathered(_self, mine: Any) -> list[Any]:
                self._rows[own] = mine
                self._barrier.wait()
                found = [*self._rows]
                self._barrier.wait()  # nobody writes the next row before all have read this one
                return found

            def numbers(self, *mine: int) -> list[list[int]]:
                return self.gathered([*mine])

        return cast("Ranks", Rank())


def outcomes(calls: Sequence[Callable[[Ranks], object]]) -> list[str]:
    """Return what each rank's call raises, all at once; empty if it raises nothing."""
    threads = Threads()

    def outcome(rank: int) -> str:
        try:
            calls[rank](threads.rank(rank))
        except MismatchError as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(RANKS) as pool:
        return list(pool.map(outcome, range(RANKS)))


def shared(call: SharedCall) -> Callable[[Ranks], None]:
    return lambda ranks: Agreement(ranks, "train", one_form=True).call(None, call)


def batch(purpose: Purpose) -> Callable[[Ranks], Found]:
    inputs = (torch.zeros(2, 3),)
    return lambda ranks: Agreement(ranks, purpose, one_form=True).find(
        (), None, inputs, lambda options, _steps: Found(None, options[0])
    )


@pytest.mark.parametrize("call", ["update", "save", "load"])
def test_the_same_call_on_all_ranks_goes_on(call: SharedCall) -> None:
    assert outcomes([shared(call)] * RANKS) == [""] * RANKS


@pytest.mark.parametrize(("most", "one"), [("save", "load"), ("load", "update"), ("update", "save")])
def test_another_call_without_a_batch_is_refused(most: SharedCall, one: SharedCall) -> None:
    line = f"rank 0 of {RANKS} calls step.{most}, and not all ranks do: call it on all ranks together, or on none"
    assert outcomes([shared(most), shared(most), shared(one)]) == [line] * RANKS


def test_a_call_among_batches_is_refused() -> None:
    line = (
        f"rank 1 of {RANKS} calls step.save, and not all ranks do: call it on all ranks together, or on none"
    )
    assert outcomes([batch("train"), shared("save"), batch("train")]) == [line] * RANKS


def test_another_purpose_is_refused_and_its_rank_named() -> None:
    line = "ranks 0 and 2 make different calls, step.__call__ and step.evaluate: all ranks make each call together"
    assert outcomes([batch("train"), batch("train"), batch("evaluate")]) == [line] * RANKS
