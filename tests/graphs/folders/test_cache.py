"""The cache of compiled code: read only where nobody else can write, rebuilt where it is broken."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
from memplan.graphs import compiled as room
from memplan.graphs.folders.cache import cache_folder
from memplan.graphs.folders.private import PrivateFolder
from memplan.planner.simulator import simulate
from memplan.solvers.recomputation.search import anneal as search_anneal
from memplan.solvers.recomputation.search import tree as search_tree
from numba import config, njit
from numba.core.event import RecordingListener, install_listener

posix = pytest.mark.skipif(os.name != "posix", reason="looks at POSIX rights")
SOURCE = "from memplan.graphs.compiled import compiled\n@compiled\ndef twice(x):\n    return x + x\n"


@pytest.fixture
def twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Any]:
    """A small compiled function, as a new process would see it; its cache lies in tmp_path / kept."""
    monkeypatch.setattr(room, "_folder", lambda _module: PrivateFolder(tmp_path / "kept"))
    (tmp_path / "small.py").write_text(SOURCE)

    def load() -> Any:
        spec = spec_from_file_location("small", tmp_path / "small.py")
        assert spec
        assert spec.loader
        module = module_from_spec(spec)
        monkeypatch.setitem(sys.modules, "small", module)
        spec.loader.exec_module(module)
        return module.twice

    return load


def kept(tmp_path: Path, ending: str) -> Path:
    (found,) = (tmp_path / "kept").rglob(f"*{ending}")
    return found


def hits(function: Any) -> int:
    return sum(function.stats.cache_hits.values())


class Planted:
    """Says so where it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (os.environ["PLANTED"],)


BROKEN: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _whole: b"",
    "cut-off": lambda whole: whole[: len(whole) // 2],
    "foreign": lambda _whole: b"\x7fELF" + b"\0" * 100,
    "another-pickle": lambda _whole: pickle.dumps(["nothing"]),
}


@pytest.mark.parametrize("ending", [".nbi", ".nbc"])
@pytest.mark.parametrize("fault", BROKEN)
def test_what_is_broken_is_compiled_again_and_kept(
    fault: str, ending: str, twice: Callable[[], Any], tmp_path: Path
) -> None:
    assert twice()(21) == 42
    file = kept(tmp_path, ending)
    file.write_bytes(BROKEN[fault](file.read_bytes()))
    recomputed = twice()
    assert recomputed(21) == 42
    assert hits(recomputed) == 0
    after = twice()
    assert after(21) == 42
    assert hits(after) == 1


def test_code_for_other_types_is_not_run(twice: Callable[[], Any], tmp_path: Path) -> None:
    """Two processes that save at once can leave an index that names the other's file."""
    assert twice()(21) == 42
    kept(tmp_path, ".nbi").unlink()
    whole = kept(tmp_path, ".nbc").read_bytes()
    assert twice()(0.25) == 0.5
    kept(tmp_path, ".nbc").write_bytes(whole)
    assert twice()(0.25) == 0.5


def test_a_disk_that_is_full_costs_the_cache_only(
    twice: Callable[[], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    function = twice()

    def full(*_args: object, **_more: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("numba.core.caching.IndexDataCacheFile.save", full)
    assert function(21) == 42
    assert not list((tmp_path / "kept").rglob("*.nbi"))


def test_what_compiled_code_alone_calls_is_compiled_once_for_all_numbers() -> None:
    @room.inner
    def plus(x: int, y: int) -> int:
        return x + y

    @njit
    def called(x: int) -> int:
        return plus(x, 1) + plus(x, 2) + plus(3, x)

    reported = RecordingListener()
    with install_listener("numba:compile", reported):
        assert called(4) == 18
    names = [event.data["dispatcher"].py_func.__name__ for _at, event in reported.buffer if event.is_start]
    assert names == ["called", "plus"]
    assert plus(1, 2) == 3


@posix
@pytest.mark.parametrize("ending", [".nbi", ".nbc"])
@pytest.mark.parametrize("opened", ["folder", "file"])
def test_code_that_others_can_have_written_is_not_read(
    twice: Callable[[], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str, opened: str
) -> None:
    """A pickle that Python's reader would run: it makes a folder."""
    assert twice()(21) == 42
    monkeypatch.setenv("PLANTED", str(tmp_path / "planted"))
    file = kept(tmp_path, ending)
    file.write_bytes(pickle.dumps(Planted()))
    (tmp_path / "kept" if opened == "folder" else file).chmod(0o777)
    with pytest.warns(UserWarning, match="other users can write to"):
        assert twice()(21) == 42
    assert not (tmp_path / "planted").exists()


@posix
def test_the_users_folder_is_absolute_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_folder() == Path("/home/somebody/.cache/memplan")
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/tmp/somebody")
    assert cache_folder() == Path("/var/tmp/somebody/memplan")
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", "nowhere")
    assert cache_folder() is None


PACKAGE = {
    "top.py": "from .middle import MOST, half, spoken\n"
    "@compiled\ndef top(x):\n    return half(x) + MOST\ndef said():\n    return spoken(top(1))\n",
    "middle.py": "from . import low\nfrom .far import FAR\nMOST = FAR + 1\nfrom .words import say\n"
    "@inner\ndef half(x):\n    return low.deep(x)\ndef spoken(x):\n    return say(x)\n",
    "low.py": "@compiled\ndef deep(x):\n    return x\n",
    "far.py": "FAR = 3\n",
    "words.py": "say = str\n",
    "apart.py": "@compiled\ndef apart(x):\n    return x\n",
}


@pytest.mark.parametrize("changed", PACKAGE)
def test_a_change_in_what_code_is_made_of_gives_it_another_folder(
    changed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path / "cache"))

    def folder(name: str) -> PrivateFolder:
        written = tmp_path / name
        written.mkdir()
        for file, text in PACKAGE.items():
            (written / file).write_text(text + ("# changed\n" if (name, file) == ("after", changed) else ""))
        return room._folder(written / "top.py")

    before, after = folder("before"), folder("after")
    assert (before != after) == (changed not in ("words.py", "apart.py"))


def test_another_copy_of_the_same_sources_uses_the_kept_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever the copies lie, and whenever they were written."""
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path / "cache"))
    for at, copy in enumerate(("first", "second")):
        path = tmp_path / copy / "small.py"
        path.parent.mkdir()
        path.write_text(SOURCE)
        os.utime(path, (at, at))
        spec = spec_from_file_location("small", path)
        assert spec
        assert spec.loader
        module = module_from_spec(spec)
        monkeypatch.setitem(sys.modules, "small", module)
        spec.loader.exec_module(module)
        assert room.is_compiled(module.twice) == (copy == "second")
        assert module.twice(21) == 42
        assert hits(module.twice) == (copy == "second")


def test_the_search_is_made_of_what_it_calls_and_of_nothing_else() -> None:
    found = room.sources(Path(search_anneal.__file__))
    assert {Path(room.__file__), Path(search_tree.__file__)} <= set(found)
    assert Path(simulate.__file__) not in found
