"""Signs of ranks by a store in this process: which one is lost, and what is said of it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, cast

import pytest
from memplan.devices.sharded import signs as left
from memplan.devices.sharded.signs import Signs, SilentError, in_time, is_of_network, line_of
from memplan.devices.sharded.store import LOST, StoreLostError


class Store:
    """A store whose process may have ended."""

    def __init__(self, **values: str) -> None:
        self.values = {name.replace("_", "/"): text.encode() for name, text in values.items()}
        self.has_ended = False

    def check(self) -> None:
        if self.has_ended:
            raise StoreLostError

    def set(self, key: str, value: str) -> None:
        self.check()
        self.values[key] = value.encode()

    def get(self, key: str) -> bytes:
        self.check()
        return self.values[key]

    def has(self, key: str) -> bool:
        self.check()
        return key in self.values


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(left, "_PATIENCE", 0.02)
    monkeypatch.setattr(left, "_LAST_WORDS", 0.02)
    monkeypatch.setattr(left, "sleep", lambda _seconds: None)


def signs(store: Store, rank: int = 0, size: int = 3, timeout: float = 40.0) -> Signs:
    return Signs(cast("Any", store), rank, size, timedelta(seconds=timeout))


def test_a_failure_is_noted_and_taken_back() -> None:
    store = Store()
    mine = signs(store, rank=2)
    mine.go_on()
    assert store.values == {}  # there is nothing to take back
    mine.fail(ValueError("two\n lines"))
    assert store.values == {"failed/2": b"two lines"}
    mine.go_on()
    assert store.values == {"failed/2": b""}
    store.has_ended = True
    mine.fail(ValueError("nobody hears it"))


TIMED_OUT = RuntimeError("Timed out waiting 40000ms for recv")
FOUND = {
    # signs of the others, error, pause -> words
    "a rank has said why": (
        Store(failed_2="no memory"),
        RuntimeError("peer"),
        0,
        "rank 2 of 3 has failed: no memory",
    ),
    "its note is taken back": (
        *(Store(failed_2="", here_1="", here_2=""), RuntimeError("[x.cc:1] err == 0. peer\n gone"), 0),
        "the network between the ranks has failed: peer gone",
    ),
    "one is silent": (Store(here_1=""), RuntimeError("peer"), 0, "rank 2 of 3 ended without an error"),
    "two are silent": (Store(), RuntimeError("peer"), 0, "rank 1 and rank 2 of 3 ended without an error"),
    "one does not come": (
        Store(here_1=""),
        TIMED_OUT,
        0,
        "rank 2 of 3 did not come to a collective within 40 s",
    ),
    "another has waited": (
        *(Store(here_1="late"), RuntimeError("peer"), 0),
        "rank 2 of 3 did not come to a collective within 40 s",
    ),
    "no sign of life": (
        Store(here_1=""),
        SilentError("beat/2"),
        0,
        "rank 2 of 3 gave no sign of life for 40 s",
    ),
    "all wait": (
        Store(here_1="", here_2=""),
        TIMED_OUT,
        0,
        "the 3 ranks did not come to one collective within 40 s",
    ),
    "all are alive": (
        *(Store(here_1="", here_2=""), SilentError("beat/1"), 0),
        "the 3 ranks did not come to one collective within 40 s",
    ),
    "this one was late": (
        *(Store(here_1="late"), RuntimeError("peer"), 41.4),
        "this rank came to a collective 41 s after its last one, and the others wait for 40 s: they",
    ),
    "as late as the others wait": (
        Store(here_1="late"),
        RuntimeError("peer"),
        40,
        "rank 2 of 3 did not come",
    ),
}


@pytest.mark.parametrize(("store", "error", "pause", "words"), FOUND.values(), ids=FOUND)
def test_who_is_lost(store: Store, error: Exception, pause: float, words: str) -> None:
    assert signs(store).find_lost(error, pause).startswith(words)


def test_this_rank_answers_that_it_is_late() -> None:
    for error, answer in ((TIMED_OUT, b"late"), (RuntimeError("peer"), b"")):
        store = Store()
        signs(store, rank=1).find_lost(error, 0)
        assert store.values == {"here/1": answer}


def test_without_the_store_rank_0_is_lost_unless_this_one_was_late() -> None:
    store = Store()
    store.has_ended = True
    assert signs(store).find_lost(RuntimeError("peer"), 40) == LOST
    assert signs(store).find_lost(RuntimeError("peer"), 41).endswith("wait for 40 s: they have ended")


def test_no_rank_hangs_before_half_a_minute() -> None:
    words = signs(Store(here_1=""), timeout=5).find_lost(SilentError("beat/2"), 0)
    assert words.startswith("rank 2 of 3 gave no sign of life for 30 s")


def test_rank_0_waits_until_its_error_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    store, looks = Store(here_1=""), list[float]()

    def sleep(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 3:
            store.set("failed/2", "too")

    monkeypatch.setattr(left, "sleep", sleep)
    monkeypatch.setattr(left, "_LAST_WORDS", 60.0)
    mine = signs(store)
    mine.await_readers()
    assert looks == []  # it has not failed
    mine.fail(ValueError())
    mine.await_readers()
    assert len(looks) == 3
    other = signs(Store(), rank=1)
    other.fail(ValueError())
    other.await_readers()
    assert len(looks) == 3


class Work:
    """A collective that is completed after so many looks."""

    def __init__(self, looks: int, error: str = "") -> None:
        self.looks, self.error = looks, error

    def is_completed(self) -> bool:
        return self.looks <= 0

    def wait(self, _timeout: object = None) -> None:
        self.looks -= 1
        if self.looks >= 0:
            raise RuntimeError("this look has timed out")
        if self.error:
            raise RuntimeError(self.error)


def test_a_collective_is_waited_for_until_a_rank_is_lost() -> None:
    store = Store()
    mine = signs(store)
    work = Work(5)
    mine.wait_or_search(work)
    assert work.looks < 0
    with pytest.raises(RuntimeError, match="its own"):
        mine.wait_or_search(Work(2, "its own"))
    mine.call_to_search()
    with pytest.raises(RuntimeError, match="the process group has lost a rank"):
        mine.wait_or_search(Work(5))


def test_a_wait_ends_when_any_rank_has_found_another_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(left, "_BEAT", 0.0)
    store = Store()
    mine = signs(store, rank=2)
    mine.wait(Work(0))
    store.set("beat/0", "1")  # rank 2 watches rank 0
    store.set("silent", "")
    with pytest.raises(SilentError, match="beat/0"):
        mine.wait(Work(1000))
    assert not mine.end_waits()  # none waits here


def test_the_first_of_the_silence_tells_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(left, "_BEAT", 0.0)
    monkeypatch.setattr(left, "_SILENCE", 0.01)
    store = Store(beat_1="7")
    with pytest.raises(SilentError):
        signs(store, timeout=0.01).wait(Work(1000))
    assert "silent" in store.values


@pytest.mark.parametrize(
    ("error", "is_one"),
    [
        (SilentError("beat/1"), True),
        (StoreLostError(), True),
        (RuntimeError("Connection reset by peer"), True),
        (RuntimeError("[Gloo] x"), True),
        (RuntimeError("lost rank 3"), True),
        (RuntimeError("shapes of rank-2 tensors differ"), False),
        (ValueError("gloo"), False),
        (NotImplementedError("gloo"), False),
    ],
)
def test_errors_of_the_group(error: Exception, is_one: bool) -> None:
    assert is_of_network(error) == is_one


def test_an_error_in_one_line() -> None:
    assert line_of(RuntimeError("[enforce fail at a.cc:12] err == 0. no\n  memory")) == "no memory"
    assert line_of(RuntimeError("[../a.cc:12] closed")) == "closed"
    assert line_of(KeyError()) == "KeyError"


def test_a_store_that_does_not_answer() -> None:
    assert in_time(lambda: 7, 5.0) == 7
    ended = Store()
    ended.has_ended = True
    with pytest.raises(RuntimeError, match="the store does not answer"):
        in_time(lambda: ended.get("x"), 5.0)
