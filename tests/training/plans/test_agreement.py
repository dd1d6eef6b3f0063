"""Ranks that make different calls: all of them refuse, in one line that says which rank makes which call."""

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


class Thread:
    """A rank that is a thread of this process. rows: what each rank gives, which all share."""

    def __init__(self, rank: int, rows: list[Any], barrier: Barrier) -> None:
        self._rank, self._rows, self._barrier = rank, rows, barrier

    def gathered(self, mine: Any) -> list[Any]:
        self._rows[self._rank] = mine
        self._barrier.wait()
        found = [*self._rows]
        self._barrier.wait()  # nobody writes the next row before all have read this one
        return found

    def numbers(self, *mine: int) -> list[list[int]]:
        return self.gathered([*mine])


def outcomes(calls: Sequence[Callable[[Ranks], object]]) -> list[str]:
    """Return what each rank's call raises, all at once; empty if it raises nothing."""
    rows, barrier = list[Any]([None] * RANKS), Barrier(RANKS, timeout=10)

    def outcome(rank: int) -> str:
        try:
            calls[rank](cast("Ranks", Thread(rank, rows, barrier)))
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


def not_all(rank: int, call: SharedCall) -> str:
    together = "call it on all ranks together, or on none"
    return f"rank {rank} of {RANKS} calls step.{call}, and not all ranks do: {together}"


@pytest.mark.parametrize("call", ["update", "save", "load"])
def test_the_same_call_on_all_ranks_goes_on(call: SharedCall) -> None:
    assert outcomes([shared(call)] * RANKS) == [""] * RANKS


@pytest.mark.parametrize(("most", "one"), [("save", "load"), ("load", "update"), ("update", "save")])
def test_another_call_without_a_batch_is_refused(most: SharedCall, one: SharedCall) -> None:
    assert outcomes([shared(most), shared(most), shared(one)]) == [not_all(0, most)] * RANKS


def test_a_call_among_batches_is_refused() -> None:
    line = (
        f"rank 1 of {RANKS} calls step.save, and not all ranks do: call it on all ranks together, or on none"
    )
    assert outcomes([batch("train"), shared("save"), batch("train")]) == [line] * RANKS


def test_another_purpose_is_refused_and_its_rank_named() -> None:
    calls = "step.__call__ and step.evaluate"
    line = f"ranks 0 and 2 make different calls, {calls}: all ranks make each call together"
    assert outcomes([batch("train"), batch("train"), batch("evaluate")]) == [line] * RANKS
