"""Pickles that are made to hang, crash or fill the memory: refused in one line, soon."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from memplan.exchange.formats import Options, read
from memplan.exchange.pickle_bytes import is_plain
from memplan.exchange.pickles import BOUNDED, UNBOUNDED, text_of, unpickled
from memplan.graphs.errors import InputError


def doubled(kind: type[Any], times: int) -> Any:
    """Something that holds another twice, and that one another."""
    held = kind([1])
    for _ in range(times):
        held = kind([held, held])
    return held


def key_of_tuples(make: bytes, times: int) -> bytes:
    """A dict whose key holds a tuple twice, and so on: its hash takes 2**times steps."""
    body = b"K\x01\x85q\x00" + b"".join(b"h%ch%c%bq%c" % (i, i, make, i + 1) for i in range(times))
    return b"\x80\x04}(" + body + b"K\x01u."


def called(times: int) -> bytes:
    """The same tuples by calls of `tuple`."""
    recomputed = b"".join(b"cbuiltins\ntuple\n(](h%ch%cetRq%c" % (i, i, i + 1) for i in range(times))
    return b"\x80\x04}(K\x01\x85q\x00" + recomputed + b"K\x01u."


HOSTILE = {
    "hash": key_of_tuples(b"\x86", 60),
    "called": called(60),
    "deep": b"\x80\x04}N" + b"\x85" * 100_000 + b"K\x01s.",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_tuples_in_tuples_are_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "g.pkl").write_bytes(HOSTILE[name])
    with pytest.raises(InputError, match="tuples are nested too deeply"):
        read("checkmate", tmp_path / "g.pkl", Options())


def test_a_memo_takes_no_memory_that_the_file_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's fast reader makes room for 2**31 objects here: 32 GiB."""
    monkeypatch.setattr(pickle, "loads", None)
    data = b"\x80\x04]r\xff\xff\xff\x7f."
    assert not is_plain(data)
    (tmp_path / "g.pkl").write_bytes(data)
    assert unpickled(tmp_path / "g.pkl") == []


@pytest.mark.parametrize(
    "fields",
    [{"v": doubled(list, 60)}, {"v": {1: doubled(list, 60)}}, {"v": [0], "cost_ram": {0: doubled(list, 60)}}],
    ids=["list", "dict", "number"],
)
def test_a_message_does_not_tell_all_of_it(fields: object, tmp_path: Path) -> None:
    (tmp_path / "g.pkl").write_bytes(pickle.dumps(fields))
    with pytest.raises(InputError, match=r"not a (list|dict)"):
        read("checkmate", tmp_path / "g.pkl", Options())


@pytest.mark.parametrize(
    "entry", [{"action": doubled(list, 60)}, {"action": "alloc", "addr": doubled(list, 60)}]
)
def test_a_snapshot_s_message_neither(entry: object, tmp_path: Path) -> None:
    (tmp_path / "s.pickle").write_bytes(pickle.dumps({"device_traces": [[entry]], "segments": []}))
    with pytest.raises(InputError, match=r"device 0, entry 0: .*a list"):
        read("snapshot", tmp_path / "s.pickle", Options())


@pytest.mark.parametrize(("field", "power"), [("cost_cpu", 400), ("cost_cpu", 5000), ("cost_ram", 30)])
def test_numbers_that_are_too_large(field: str, power: int, tmp_path: Path) -> None:
    (tmp_path / "g.pkl").write_bytes(pickle.dumps({"v": [0], field: {0: 10**power}}))
    with pytest.raises(InputError, match=f"{field} of node 0 must be .*, not a number of"):
        read("checkmate", tmp_path / "g.pkl", Options())


def test_nothing_of_ours_is_changed(tmp_path: Path) -> None:
    """Attributes set on what a pickle names would stay for the next one."""
    for module, name in (name.rsplit(".", 1) for name in (*UNBOUNDED, *BOUNDED)):
        (tmp_path / "g.pkl").write_bytes(
            b"c%b\n%b\nN}(Vhidden\nK\x01u\x86b." % (module.encode(), name.encode())
        )
        with pytest.raises(ValueError, match="can be read"):
            unpickled(tmp_path / "g.pkl")


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_what_is_read_is_what_was_written(protocol: int, tmp_path: Path) -> None:
    value: dict[Any, Any] = {"a": [1, 2**70, -3, 0.5, None, True, "é" * 300], 4: {"b": []}}
    mixed: list[Any] = [
        value,
        (1, (2, 3), (), (4, 5, 6, 7), (8, 9)),
        {1, 2},
        frozenset([(1, 2)]),
        {(1, 2): 3},
    ]
    for data in list[Any]((value, mixed)):
        (tmp_path / "g.pkl").write_bytes(pickle.dumps(data, protocol=protocol))
        assert unpickled(tmp_path / "g.pkl") == data
    assert is_plain(pickle.dumps(value, protocol=4))
    assert not is_plain(pickle.dumps(mixed, protocol=4))
    assert not is_plain(pickle.dumps(value, protocol=4)[:-1])


def test_a_value_is_told_in_few_words() -> None:
    assert text_of("a" * 100) == repr("a" * 60)
    assert [text_of(value) for value in (3, -1, None, 2**70, [1])] == [
        "3",
        "-1",
        "None",
        "a number of 71 bits",
        "a list",
    ]
