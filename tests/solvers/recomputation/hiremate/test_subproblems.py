"""Independent subproblems: answers in order, each solved once, kept on disk, a killed solve resumed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from memplan.graphs.errors import InputError, MissingPackageError
from memplan.graphs.folders import private
from memplan.graphs.folders.private import PrivateFolder
from memplan.solvers.recomputation.hiremate.subproblems import Cache, Job, Solved, cache_of, solve_all
from memplan.solvers.workers import cluster

SLOW = """
import sys, time
from pathlib import Path
from memplan.graphs.folders.private import PrivateFolder
from memplan.solvers.recomputation.hiremate.subproblems import Cache, Job, solve_all

def square(content, seconds):
    print(content, flush=True)
    time.sleep(0.3)
    return content * content, True

print(solve_all(square, [Job(i, 1.0) for i in range(6)], cache=Cache(PrivateFolder(Path(sys.argv[1])), "1")))
"""


def square(content: Any, _seconds: float) -> Solved:
    return [content * content, os.getpid()], True


class Counting:
    """A function that counts its calls. complete: what it says of its answers."""

    def __init__(self, complete: bool = True) -> None:
        self.calls: list[Any] = []
        self.complete = complete

    def __call__(self, content: Any, seconds: float) -> Solved:
        self.calls.append(content)
        return {"square": content * content, "seconds": seconds}, self.complete


def squares(answers: list[Any]) -> list[int]:
    return [answer["square"] for answer in answers]


def test_equal_subproblems_are_solved_once_and_answers_come_in_order() -> None:
    function = Counting()
    assert squares(solve_all(function, [Job(n, 1.0) for n in (3, 1, 3, 2, 1)])) == [9, 1, 9, 4, 1]
    assert function.calls == [3, 1, 2]


def test_solved_subproblems_are_not_solved_again(tmp_path: Path) -> None:
    first, second, other = Counting(), Counting(), Counting()
    jobs = [Job(n, 1.0) for n in range(4)]
    answers = solve_all(first, jobs, cache=Cache(PrivateFolder(tmp_path), "1"))
    assert solve_all(second, jobs, cache=Cache(PrivateFolder(tmp_path), "1")) == answers
    assert not second.calls
    solve_all(other, jobs, cache=Cache(PrivateFolder(tmp_path), "2"))
    assert other.calls == [0, 1, 2, 3], "another version's answers were taken"


def test_more_seconds_solve_again_what_was_not_complete(tmp_path: Path) -> None:
    cache = Cache(PrivateFolder(tmp_path), "1")
    hasty, patient = Counting(complete=False), Counting()
    solve_all(hasty, [Job(7, 5.0)], cache=cache)
    for seconds, calls in ((1.0, 0), (5.0, 0), (9.0, 1), (99.0, 1)):
        solve_all(patient, [Job(7, seconds)], cache=cache)
        assert len(patient.calls) == calls


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", '{"complete": true}', '{"complete": 1, "seconds": "x"}', "\0", "[" * 100_000),
        '{"complete": true, "seconds": 1.0, "answer": {"square": 26}}',
        '{"complete": true, "seconds": 1.0, "sha256": "0", "answer": {"square": 26}}',
    ],
)
def test_a_corrupted_entry_is_solved_again(tmp_path: Path, text: str) -> None:
    cache, function = Cache(PrivateFolder(tmp_path), "1"), Counting()
    solve_all(function, [Job(5, 1.0)], cache=cache)
    (entry,) = tmp_path.rglob("*.json")
    good = entry.read_text()
    entry.write_text(text)
    assert squares(solve_all(function, [Job(5, 1.0)], cache=cache)) == [25]
    assert function.calls == [5, 5]
    assert entry.read_text() == good
    assert json.loads(good)["answer"]["square"] == 25


def test_a_folder_that_cannot_be_written_costs_the_entry_alone(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    cache = Cache(PrivateFolder(blocked / "below"), "1")
    with pytest.warns(UserWarning, match=r"nothing is cached in .*: Not a directory"):
        assert squares(solve_all(Counting(), [Job(2, 1.0)], cache=cache)) == [4]
    with pytest.raises(InputError, match="is not a folder"):
        cache_of(str(blocked), "1")


def test_a_killed_solve_resumes(tmp_path: Path) -> None:
    script, folder = tmp_path / "slow.py", tmp_path / "cache"
    script.write_text(SLOW)
    command = [sys.executable, str(script), str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        while len(list(folder.rglob("*.json"))) < 3:
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    solved = len(list(folder.rglob("*.json")))
    recomputed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert recomputed[-1] == "[0, 1, 4, 9, 16, 25]"
    assert recomputed[:-1] == [str(n) for n in range(solved, 6)]


def test_the_users_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cache = cache_of("", "1")
    assert cache is not None
    assert cache.folder.path == tmp_path / "memplan" / "subproblems"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    cache = cache_of("", "1")
    assert cache is not None
    assert cache.folder.path == tmp_path / "home" / ".cache" / "memplan" / "subproblems"
    assert cache_of("off", "1") is None
    monkeypatch.setenv("HOME", "nowhere")
    monkeypatch.setattr(private, "_said", set[str]())
    with pytest.warns(UserWarning, match="neither XDG_CACHE_HOME nor HOME is an absolute path"):
        assert cache_of("", "1") is None


def test_workers_give_the_same_answers(tmp_path: Path) -> None:
    jobs = [Job(n, 1.0) for n in range(5)]
    answers = solve_all(square, jobs, workers=2, cache=Cache(PrivateFolder(tmp_path), "1"))
    assert [answer[0] for answer in answers] == [0, 1, 4, 9, 16]
    assert os.getpid() not in {answer[1] for answer in answers}
    assert len(list(tmp_path.rglob("*.json"))) == 5


@pytest.mark.parametrize("backend", ["dask", "ray"])
def test_a_cluster_that_is_not_installed(monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    def missing(_name: str) -> Any:
        raise ImportError

    monkeypatch.setattr(cluster, "import_module", missing)
    with pytest.raises(MissingPackageError, match=f"{backend} .* not installed"):
        solve_all(square, [Job(n, 1.0) for n in range(2)], workers=2, backend=backend)


def test_an_unknown_backend() -> None:
    with pytest.raises(InputError, match="unknown backend 'mpi': loky, dask, ray"):
        solve_all(square, [Job(n, 1.0) for n in range(2)], workers=2, backend="mpi")


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("backend", "package"), [("dask", "distributed"), ("ray", "ray")])
def test_on_a_cluster(backend: str, package: str) -> None:
    pytest.importorskip(package)
    answers = solve_all(square, [Job(n, 1.0) for n in range(4)], workers=2, backend=backend)
    assert [answer[0] for answer in answers] == [0, 1, 4, 9]
