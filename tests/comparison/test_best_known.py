"""The best that is known of a graph: what a comparison beats, and how the record grows."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from math import inf
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from memplan.cli.bench.tables import comparison_lines
from memplan.cli.main import main
from memplan.comparison.best_known import Best, beaten, joined, load_best, save_best
from memplan.comparison.trials import Row
from memplan.graphs.errors import InputError
from memplan.graphs.files.files import save_graph
from memplan.graphs.generators import chain
from memplan.instances.catalogue import corpora

BEST = Best("g", "ab" * 32, "50%", 500, 2.0, 1.5, "rotor", 3.0, "1e10", "2026-11-23")
Bench = Callable[..., Result]


def row(time: float | None = 1.8, bound: float | None = 1.5, *, budget: int = 500) -> Row:
    solved = "ok" if time is not None else "infeasible"
    return Row(
        graph="g",
        operations=3,
        tensors=3,
        budget_text="50%",
        solver="search",
        outcome=solved,
        overhead_percent=time,
        gap_percent=None,
        traced_order_gap_percent=None,
        own_gap_percent=None,
        nodes=None,
        peak_percent_of_budget=None,
        seconds=1.0,
        status="",
        time=time,
        peak=None,
        lower_bound=bound,
        traced_order_bound=None,
        backward_once_bound=None,
        least_budget=None,
        budget=budget,
        baseline_time=1.0,
        baseline_peak=1000,
        time_limit=None,
        settings="{}",
        message="",
        sha256=BEST.sha256,
        memplan="0",
    )


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.chdir(tmp_path)
    return lambda *words: CliRunner().invoke(main, ["bench", *words])


def test_only_a_faster_row_at_the_same_place_beats_it() -> None:
    known = {BEST.place: BEST}
    assert beaten([row(2.0), row(2.5), row(None), row(1.0, budget=501)], known) == []
    (found,) = beaten([row(1.9), row(1.8), row(1.95)], known)
    assert found.row.time == 1.8
    assert found.faster_percent == pytest.approx(10.0)
    assert not found.refuted
    (line,) = [text.plain for text in comparison_lines([row()], [], [found]) if "best known" in text.plain]
    assert line == "search on g at 50%: best known, 1.80 s, 10% faster than 2.00 s by rotor on 2026-11-23"


def test_a_row_below_the_bound_on_record_is_told_as_a_fault() -> None:
    (found,) = beaten([row(1.4)], {BEST.place: BEST})
    assert found.refuted
    text = "\n".join(text.plain for text in comparison_lines([row(1.4)], [], [found]))
    assert "below the bound on record, 1.5 s: one of them is wrong" in text


def test_the_record_takes_the_faster_and_the_larger_bound() -> None:
    known = {BEST.place: BEST}
    assert joined(known, [row(2.1, 1.4), row(None, inf)], "new", "2026-11-24") == known
    faster = joined(known, [row(1.8, 1.4)], "new", "2026-11-24")[BEST.place]
    assert (faster.time, faster.bound, faster.solver, faster.commit) == (1.8, 1.5, "search", "new")
    tighter = joined(known, [row(2.1, 1.6)], "new", "2026-11-24")[BEST.place]
    assert tighter == replace(BEST, bound=1.6, commit="new", date="2026-11-24")
    first = joined({}, [row(None, 1.0), row(3.0, None)], "new", "2026-11-24")
    assert [one.time for one in first.values()] == [3.0]


def test_a_graph_keeps_the_name_that_it_had() -> None:
    """A file of it may call itself otherwise."""
    (found,) = joined({BEST.place: BEST}, [replace(row(1.5), graph="other")], "c", "2026-11-25").values()
    assert (found.graph, found.time) == (BEST.graph, 1.5)


def test_open_is_what_is_more_than_one_percent_above_its_bound() -> None:
    assert BEST.is_open
    assert replace(BEST, bound=None).is_open
    assert not replace(BEST, bound=1.99).is_open


def test_a_record_reads_back(tmp_path: Path) -> None:
    other = replace(BEST, sha256="12" * 31 + "1e", bytes=400, bound=None)
    known = {BEST.place: BEST, other.place: other}
    save_best(known, tmp_path / "best.yaml")
    assert load_best(tmp_path / "best.yaml") == known


@pytest.mark.parametrize("text", ["[]", "best: 1", "best: [{graph: g}]", "rows: []"])
def test_what_is_no_record_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "best.yaml").write_text(text)
    with pytest.raises(InputError, match="not a record of best known results"):
        load_best(tmp_path / "best.yaml")


@pytest.mark.parametrize("field", ["time", "bytes"])
def test_a_record_of_nothing_is_refused(field: str, tmp_path: Path) -> None:
    wrong = replace(BEST, **{field: 0})
    save_best({wrong.place: wrong}, tmp_path / "best.yaml")
    with pytest.raises(InputError, match="not a record"):
        load_best(tmp_path / "best.yaml")


@pytest.mark.scripts
def test_a_comparison_keeps_its_best_and_tells_what_beats_it(bench: Bench) -> None:
    save_graph(chain(6), "g.json")
    words = ["g.json", "--budgets", "70%", "--update-best", "best.yaml", "--json", "--bound-time", "2"]
    first = bench(*words, "--solvers", "rotor")
    assert first.exit_code == 0, first.stderr
    assert json.loads(first.stdout)["beaten"] == []
    (best,) = load_best(Path("best.yaml")).values()
    (row,) = json.loads(first.stdout)["rows"]
    assert (best.time, best.solver, best.bytes) == (row["time"], "rotor", row["budget"])
    assert best.bound == row["lower_bound"]
    slow = replace(best, time=2 * best.time, solver="slow")
    save_best({slow.place: slow}, Path("best.yaml"))
    (reported,) = json.loads(bench(*words, "--solvers", "rotor").stdout)["beaten"]
    assert (reported["best_solver"], reported["faster_percent"]) == ("slow", pytest.approx(50.0))
    assert load_best(Path("best.yaml"))[best.place].time == best.time


@pytest.mark.scripts
def test_a_corpus_is_compared_with_what_is_published(bench: Bench) -> None:
    """Those that are made by rule too, under their names."""
    words = ["--solvers", "store-all", "--budgets", "100%,90%", "--bound-time", "0", "--json"]
    result = bench("--corpus", "public", "--corpus", "checkpoints", *words)
    assert result.exit_code == 0, result.stderr
    document = json.loads(result.stdout)
    names = [*corpora()["public"].instances, *corpora()["checkpoints"].instances]
    assert list(dict.fromkeys(row["graph"] for row in document["rows"])) == names
    assert [row["outcome"] for row in document["rows"] if row["budget_text"] == "100%"] == ["ok"] * len(names)
    assert [match["graph"] for match in document["published"]] == ["fcn8", "unet", "segnet"]


def test_peers_are_compared_with_at_the_budgets_of_their_results(bench: Bench) -> None:
    """Graphs of DTR's logs are matched by the name that `plan import dtr` gives them.

    Their budgets are shares of DTR's peak, in which a tensor counts as long as Python has a name for it.
    """
    save_graph(replace(chain(3), name="dtr-treelstm"), Path("tree.json"))
    result = bench("tree.json", "--peers", "--filter", "treelstm*85086804*", "--time-limit", "1", "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert [(row["graph"], row["budget_text"], row["solver"]) for row in document["rows"]] == [
        ("dtr-treelstm", "85086804B", "auto")
    ]
    (match,) = document["published"]
    assert (match["method"], match["overhead_percent"], match["seconds"]) == ("dtr", 12.7, None)
    rows = json.loads(bench("--peers", "--dry-run", "--json").stdout)["rows"]
    assert len(rows) == 13
    save_graph(chain(4), Path("unpublished.json"))
    said = bench("unpublished.json", "tree.json", "--peers", "--dry-run").stderr
    assert f"--peers leaves out {chain(4).name}: no results are published of it" in said
    refused = bench("--peers", "--budgets", "50%")
    assert "leave out --budgets or --peers" in refused.stderr
