"""What tells new objects from old ones, also where a user has switched the collector off."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from contextlib import ExitStack
from random import Random
from threading import Thread
from typing import Any

import memplan
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from memplan.graphs import collector
from memplan.graphs.collector import (
    collector_off,
    collector_seldom,
    objects_of,
    see_frozen,
    youngest_kept,
)
from memplan.guards.reads.youngest import Youngest
from memplan.torch_support.reach import is_of_user, reachable
from torch import nn


@pytest.fixture(params=[True, False], ids=["on", "off"])
def collects(request: pytest.FixtureRequest) -> Iterator[bool]:
    before = gc.isenabled()
    (gc.enable if request.param else gc.disable)()
    yield request.param
    (gc.enable if before else gc.disable)()


@pytest.mark.sampled(1)
def test_new_objects_are_told_from_old_ones(collects: bool) -> None:
    random, old = Random(0), [[number] for number in range(200)]
    youngest = Youngest()
    with youngest.watched():
        assert not gc.isenabled()
        new = [[number] for number in range(200)]
        things = [(True, each) for each in old] + [(False, each) for each in new]
        random.shuffle(things)
        assert all(youngest.was_there(thing) is there for there, thing in things)
    assert gc.isenabled() is collects
    gc.collect()
    assert all(youngest.was_there(thing) is there for there, thing in things)


def test_each_look_passes_by_what_a_process_without_a_collector_has() -> None:
    gc.disable()
    try:
        _kept = [[number] for number in range(100_000)]
        with Youngest().watched():
            assert len(gc.get_objects(generation=0)) < 1000
    finally:
        gc.enable()


@given(st.permutations([0, 0, 1, 1, 2, 2]))
def test_the_collector_is_off_as_long_as_anybody_needs_it(order: list[int]) -> None:
    """Traces of several threads begin and end in any order."""
    open_: dict[int, ExitStack] = {}
    for each in order:
        if each in open_:
            open_.pop(each).close()
        else:
            open_[each] = ExitStack()
            open_[each].enter_context(collector_off())
        assert gc.isenabled() is not bool(open_)


def test_an_error_switches_it_on_again() -> None:
    with pytest.raises(KeyboardInterrupt), collector_off():
        raise KeyboardInterrupt
    assert gc.isenabled()


@pytest.mark.scripts
@pytest.mark.sampled(1)
def test_planning_leaves_the_collector_as_it_was(collects: bool) -> None:
    class Logs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.seen = nn.Linear(4, 4), list[float]()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            loss = self.layer(x).square().mean()
            self.seen.append(loss.item())
            return loss

    step = memplan.optimize(Logs(), torch.ones(2, 4), budget="100%", cache=False, time_limit=1)
    assert gc.isenabled() is collects
    step(torch.ones(2, 4))
    assert gc.isenabled() is collects


def test_this_package_is_a_library_when_it_is_installed_from_its_sources() -> None:
    """A walk from a model that uses it does not enter its own tables."""
    assert not is_of_user(reachable)
    assert is_of_user(test_an_error_switches_it_on_again)


def test_threads_see_one_collector() -> None:
    inside: list[Any] = []

    def other() -> None:
        with collector_off():
            inside.append(gc.isenabled())

    with collector_off():
        thread = Thread(target=other)
        thread.start()
        thread.join()
        assert inside == [False]
        assert not gc.isenabled()
    assert gc.isenabled()


class _Circle:
    """An object that only the collector can remove."""

    def __init__(self, removed: list[bool]) -> None:
        self.itself, self.removed = self, removed

    def __del__(self) -> None:
        self.removed.append(True)


@pytest.fixture
def unfrozen(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No object is left out of collections, as in a process that has never asked for it."""
    monkeypatch.setattr(collector, "has_frozen", lambda: gc.get_freeze_count() > 0)
    gc.unfreeze()
    yield
    gc.collect()
    gc.unfreeze()  # conftest.py leaves out what is there before the next test


def test_garbage_is_still_collected_where_the_collector_runs_seldom(unfrozen: None) -> None:
    removed = list[bool]()
    before, frozen = gc.get_threshold(), gc.get_freeze_count()
    with collector_seldom() as leave_out_all:
        leave_out_all()
        assert gc.get_freeze_count() > frozen
        _Circle(removed)
        kept = [[] for _ in range(2 * gc.get_threshold()[0])]  # more than make the collector run
        assert removed
        assert kept
        assert gc.get_threshold() > before
    assert gc.get_threshold() == before
    assert not gc.get_freeze_count()


def test_what_the_process_has_left_out_stays_so(unfrozen: None) -> None:
    gc.freeze()
    before = gc.get_freeze_count()
    with collector_seldom() as leave_out:
        leave_out()
        assert gc.get_freeze_count() <= before  # some die meanwhile
    assert before / 2 < gc.get_freeze_count() <= before


def test_what_is_left_out_is_seen_from_then_on(unfrozen: None) -> None:
    thing = [object()]
    gc.freeze()

    def seen() -> bool:
        return any(each is thing for each in gc.get_objects())

    assert not seen()
    see_frozen()
    assert seen()


def test_young_objects_stay_young_while_they_are_looked_at(unfrozen: None) -> None:
    gc.freeze()
    with youngest_kept():
        young = [object()]
        see_frozen()
        assert any(each is young for each in gc.get_objects(generation=0))


def test_what_is_made_after_a_process_has_frozen_others_is_still_collected(unfrozen: None) -> None:
    """A model in a circle, such as that of a hook, and the plans for it."""
    gc.freeze()
    removed, x = list[bool](), torch.ones(2, 4)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    vars(model)["itself"] = [model, _Circle(removed)]
    step = memplan.optimize(model, x, loss_fn=torch.sum, budget="100%", cache=False, solver="rotor")
    step(x).backward()
    gone = weakref.ref(step.plans[0])
    memplan.optimize(nn.Linear(4, 4), x, loss_fn=torch.sum, budget="100%", cache=False, solver="rotor")
    del model, step
    gc.collect()
    assert gone() is None
    assert removed


class _Kind:
    pass


class _Subtype(_Kind):
    pass


class _Unhashable(type):
    def __hash__(cls) -> int:
        raise AssertionError("a type was asked for its hash")


class _Proxy(metaclass=_Unhashable):
    @property
    def __class__(self) -> Any:
        raise AssertionError("a proxy was asked for its class")


def test_objects_of_a_type_are_found_wherever_they_are(unfrozen: None) -> None:
    frozen, proxy = _Subtype(), _Proxy()
    gc.freeze()
    young = _Kind()
    found = objects_of(_Kind)
    assert {id(each) for each in found} == {id(frozen), id(young)}
    assert type(proxy) is _Proxy
