"""Ranks that run one plan agree on another one if one of them has no room for it: here two threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Barrier, Thread
from types import SimpleNamespace
from typing import Any, cast

import pytest
from memplan.devices.storage.shortage import ShortageError
from memplan.graphs.machine import Memory
from memplan.solvers.problem import InfeasibleError
from memplan.training.plans import less_room
from memplan.training.plans.less_room import fitting_step

NEEDED = 100


class Group:
    """Two ranks in one process, as Ranks."""

    size = 2

    def __init__(self, rank: int, board: list[Any], barrier: Barrier) -> None:
        self.rank, self._board, self._barrier = rank, board, barrier

    def gathered(self, mine: Any) -> list[Any]:
        self._board[self.rank] = mine
        self._barrier.wait(5)
        found = [*self._board]
        self._barrier.wait(5)
        return found

    def together(self, make: Callable[[], Any]) -> Any:
        failed = made = None
        try:
            made = make()
        except Exception as error:
            failed = error
        if found := [each for each in self.gathered(failed) if each is not None]:
            raise failed or found[0]
        return made


def on_both(rooms: Sequence[int | None], memories: Sequence[Memory], least: int = 0) -> list[Any]:
    """Return, per rank, the bytes of the plan that its step has, or the line of its error.

    rooms: bytes that each rank has, None if it does not know. least: bytes below which there is no plan.
    """
    board, barrier, found = list[Any]([None, None]), Barrier(2), list[Any]([None, None])

    def run(rank: int) -> None:
        group = Group(rank, board, barrier)

        def make(plan: Any) -> Any:
            room = rooms[rank]
            if room is None or plan.size > room:
                raise ShortageError.of(memories[rank], f"{plan.size} B are needed", room)
            return plan.size

        def solved(plan: Any, _iteration: Any) -> Any:
            if plan.size < least:
                raise InfeasibleError("joint", plan.size, least, min_memory=least)
            return plan

        def by_first(_iteration: Any, _program: Any, solve: Callable[[], Any]) -> Any:
            made = group.together(lambda: None if rank else solve())
            return group.gathered(made)[0]

        planner = SimpleNamespace(
            machine_of=lambda _plan: "a machine",
            on_less=lambda _plan, _memory, size: SimpleNamespace(size=size, program=None),
            solved=solved,
            front_end=SimpleNamespace(by_first=by_first),
        )
        plan: Any = SimpleNamespace(size=NEEDED, program=None)
        try:
            step, plan = fitting_step(
                cast("Any", planner), cast("Any", SimpleNamespace(group=group)), plan, make
            )
            found[rank] = step
        except ShortageError as error:
            found[rank] = str(error)

    threads = [Thread(target=run, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return found


@pytest.fixture(autouse=True)
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines = list[str]()
    monkeypatch.setattr(less_room, "_seconds", lambda _planner, plan: plan.size)
    monkeypatch.setattr(less_room, "warn_user", lines.append)
    return lines


HOST, DISK = Memory.HOST, Memory.DISK


@pytest.mark.parametrize(
    ("rooms", "memories", "expected"),
    [
        ((100, 100), (HOST, HOST), 100),
        ((100, 60), (HOST, HOST), 60),
        ((40, 60), (HOST, HOST), 40),
        ((70, 40), (HOST, DISK), 40),
    ],
)
def test_all_ranks_get_the_plan_for_the_least_room(
    rooms: tuple[int, int], memories: tuple[Memory, Memory], expected: int, said: list[str]
) -> None:
    assert on_both(rooms, memories) == [expected, expected]
    assert bool(said) == (expected < NEEDED)


def test_a_rank_that_does_not_know_its_room_ends_both() -> None:
    assert on_both((60, None), (HOST, HOST)) == ["100 B are needed", "100 B are needed"]
    assert on_both((100, None), (HOST, HOST)) == ["rank 1 of 2: 100 B are needed", "100 B are needed"]


def test_without_a_plan_for_so_little_both_refuse() -> None:
    found = on_both((100, 30), (HOST, HOST), least=50)
    text = "100 B are needed, and no plan for so little was found: free some, or give a larger budget"
    assert found == [f"rank 1 of 2: {text}", text]
