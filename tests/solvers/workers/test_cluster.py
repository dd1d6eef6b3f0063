"""`plan bench` on a cluster: Dask's, started on this machine."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from memplan.cli.main import main
from memplan.graphs.files.files import save_graph
from memplan.graphs.generators import chain
from memplan.solvers.workers import cluster

Bench = Callable[..., Result]


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Run `plan bench` on a chain."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DASK_SCHEDULER_ADDRESS", raising=False)
    save_graph(chain(6), "chain.json")
    asked = ["bench", "chain.json", "--solvers", "rotor,checkmate", "--budgets", "90%,75%"]
    return lambda *words: CliRunner().invoke(main, [*asked, *words])


@pytest.mark.scripts
def test_it_gives_the_same_rows(bench: Bench) -> None:
    """Each row is a process of its own there too."""
    pytest.importorskip("distributed")
    here, there = (bench("--json", "--backend", backend) for backend in ("loky", "dask"))
    assert (here.exit_code, there.exit_code) == (0, 0), there.output
    figures = ("graph", "budget", "solver", "outcome", "time", "peak", "lower_bound")
    solved, theirs = (
        [{name: row[name] for name in figures} for row in json.loads(one.stdout)["rows"]]
        for one in (here, there)
    )
    assert len(solved) == 4
    assert solved == theirs


def test_one_that_does_not_answer(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed")
    monkeypatch.setenv("DASK_SCHEDULER_ADDRESS", "tcp://127.0.0.1:1")
    monkeypatch.setattr(cluster, "CONNECT_SECONDS", 1)
    answer = bench("--backend", "dask")
    assert answer.exit_code == 2
    assert "no Dask scheduler answers at DASK_SCHEDULER_ADDRESS=tcp://127.0.0.1:1" in answer.stderr


def test_its_workers_are_its_own_affair(bench: Bench) -> None:
    answer = bench("--backend", "dask", "--workers", "4")
    assert answer.exit_code == 2
    line = "--workers is for this machine: with --backend dask all of the cluster's work"
    assert line in answer.stderr


def test_one_that_is_not_installed(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_name: str) -> None:
        raise ImportError

    monkeypatch.setattr(cluster, "import_module", missing)
    answer = bench("--backend", "dask")
    assert answer.exit_code == 4
    assert "needs the package distributed, which is not installed: pip install distributed" in answer.stderr
