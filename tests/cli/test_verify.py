"""`plan verify`, and `plan solve --certificate`: what they print, and every error a user can cause."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from command_line import write_files
from memplan.cli.main import main
from memplan.graphs.files.files import load_graph, save_graph
from memplan.graphs.generators import chain
from training_graphs import training

Plan = Callable[..., Result]
FILES = ("s.json", "c.json", "none.json")


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    """Run `plan` in a folder with training.json, and its schedule and certificate at 60 %."""
    monkeypatch.chdir(tmp_path)
    write_files()
    save_graph(training(6, 1), "training.json")
    for name, text in zip(FILES, certified(), strict=True):
        Path(name).write_text(text)
    return run


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@cache
def certified() -> tuple[str, ...]:
    """Return a schedule, its certificate, and that of a budget without a schedule."""
    call = (
        "solve",
        "training.json",
        "--solver",
        "search",
        "--time-limit",
        "1",
        "--bound-time",
        "1",
        "--json",
    )
    result = run(*call, "--budget", "60%", "-o", "s.json", "--certificate", "c.json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["certificate"] == "c.json"
    refused = run(*call, "--budget", "1KB", "--certificate", "none.json")
    assert refused.exit_code == 3
    assert "what proves it is in none.json" in refused.stderr
    return tuple(Path(name).read_text() for name in FILES)


def write(name: str, source: str, change: Callable[[Any], object]) -> None:
    """Write a file like another with a change in it."""
    document = json.loads(Path(source).read_text())
    change(document)
    Path(name).write_text(json.dumps(document))


def test_claims_are_proven_or_say_by_whom(plan: Plan) -> None:
    result = plan("verify", "s.json", "--certificate", "c.json")
    assert result.exit_code == 0, result.stderr
    lines = {line.partition("  ")[0]: line for line in result.stdout.splitlines()}
    for claim in ("time", "peak", "min_memory", "min_memory_once", "steps that keep every rule"):
        assert lines[claim].endswith("proven")
    assert " s: proven" in lines["time"]
    assert " B: proven" in lines["peak"] or "iB: proven" in lines["peak"]
    found = json.loads(plan("verify", "s.json", "--certificate", "c.json", "--json").stdout)
    assert found["verified"] is True
    bounds = [claim for claim in found["claims"] if claim["claim"].startswith("lower bound")]
    schedule = json.loads(Path("s.json").read_text())
    assert bounds[0]["value"] == schedule["predicted"]["lower_bound"]
    assert all(claim["proven"] > 0 for claim in bounds)
    assert all(claim["by"] in ("", "HiGHS") for claim in bounds)


def test_a_bound_by_highs_says_so_wherever_it_is_shown(plan: Plan) -> None:
    graph = load_graph("training.json")
    schedule = json.loads(Path("s.json").read_text())
    schedule["solver"]["bound_by"] = "HiGHS"
    Path("h.json").write_text(json.dumps(schedule))
    assert graph.name
    for command in ("check", "show"):
        assert "by HiGHS, not checked" in plan(command, "h.json").stdout
        assert json.loads(plan(command, "h.json", "--json").stdout)["bound_by"] == "HiGHS"
        assert json.loads(plan(command, "s.json", "--json").stdout)["bound_by"] in ("", "HiGHS")


def test_the_graph_may_be_yaml_with_units(plan: Plan) -> None:
    save_graph(load_graph("training.json"), "training.yaml")
    Path("training.json").unlink()
    assert plan("verify", "s.json", "--certificate", "c.json").exit_code == 0
    assert plan("verify", "s.json", "--certificate", "c.json", "--graph", "training.yaml").exit_code == 0


def test_a_changed_schedule_is_another(plan: Plan) -> None:
    write("s2.json", "s.json", lambda row: row["steps"].pop())
    result = plan("verify", "s2.json", "--certificate", "c.json")
    assert result.exit_code == 6
    assert "the certificate is another schedule" in result.stderr


def test_a_claim_that_does_not_follow_is_refused(plan: Plan) -> None:
    def raise_minimum(row: Any) -> None:
        row["min_memory"]["bytes"] += 1

    write("c2.json", "c.json", raise_minimum)
    result = plan("verify", "s.json", "--certificate", "c2.json", "--json")
    assert result.exit_code == 5
    assert "min_memory" in result.stderr
    assert json.loads(result.stdout)["verified"] is False


ERRORS = {
    "no-schedule": (["verify", "no.json", "--certificate", "c.json"], 2, "no.json: no such file"),
    "no-certificate": (["verify", "s.json", "--certificate", "no.json"], 2, "no.json: no such file"),
    "no-option": (["verify", "s.json"], 2, "Missing option '--certificate'"),
    "truncated": (["verify", "s.json", "--certificate", "half.json"], 2, "not JSON"),
    "a-graph": (
        ["verify", "training.json", "--certificate", "c.json"],
        2,
        "it proves claims: give the schedule that it is of",
    ),
    "no-schedule-to-prove": (
        ["verify", "s.json", "--certificate", "none.json"],
        2,
        "it proves that there is no schedule: give its graph",
    ),
    "no-schedule-of-another": (["verify", "chain.json", "--certificate", "none.json"], 6, "another graph"),
    "a-schedule": (["verify", "s.json", "--certificate", "s.json"], 2, "it is a schedule"),
    "a-certificate": (["verify", "c.json", "--certificate", "c.json"], 2, "it is a certificate"),
    "another-graph": (
        ["verify", "s.json", "--certificate", "c.json", "--graph", "chain.json"],
        6,
        "is of another graph",
    ),
    "no-graph": (["verify", "s.json", "--certificate", "c.json", "--graph", "no.json"], 2, "no such file"),
    "a-field-less": (["verify", "s.json", "--certificate", "less.json"], 2, "a field is missing"),
    "of-another": (["verify", "s.json", "--certificate", "of.json"], 6, "another schedule"),
    "no-folder": (
        ["solve", "chain.json", "--budget", "100%", "--certificate", "no/c.json"],
        2,
        "cannot be written",
    ),
    "over-the-schedule": (
        ["solve", "chain.json", "--budget", "100%", "-o", "x.json", "--certificate", "x.json"],
        2,
        "--certificate would write over another file",
    ),
    "over-the-graph": (
        ["solve", "chain.json", "--budget", "100%", "--certificate", "./chain.json"],
        2,
        "--certificate would write over another file",
    ),
    "of-no-suffix": (
        ["solve", "chain.json", "--budget", "100%", "--certificate", "c.txt"],
        2,
        "the suffix must be .json",
    ),
}


@pytest.mark.parametrize("fault", ERRORS)
def test_an_error_is_one_line_with_its_exit_code(fault: str, plan: Plan) -> None:
    write("less.json", "c.json", lambda row: row.pop("bounds"))
    write("of.json", "c.json", lambda row: row.update(subject="0"))
    arguments, code, expected = ERRORS[fault]
    result = plan(*arguments)
    assert result.exit_code == code, result.stderr
    assert expected in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stderr.splitlines()[-1].startswith("plan: error: ")


def test_an_offloading_bound_says_whose_it_is(plan: Plan) -> None:
    save_graph(training(6, 2, update="end"), "offload.json")
    Path("links.yaml").write_text("links: {d2h: 1MB/s, h2d: 1MB/s}\n")
    options = ("--machine", "links.yaml", "--solver", "joint", "--time-limit", "2", "--bound-time", "2")
    call = ("solve", "offload.json", "--budget", "60%", *options, "-o", "o.json", "--certificate", "oc.json")
    result = plan(*call)
    assert result.exit_code == 0, result.stderr
    found = json.loads(plan("verify", "o.json", "--certificate", "oc.json", "--json").stdout)
    words = {claim["by"] for claim in found["claims"] if claim["claim"].startswith("lower bound")}
    assert words <= {"", "HiGHS", "memplan's offloading program"}
    assert {claim["claim"]: claim["checked"] for claim in found["claims"]}["time"]


def test_a_schedule_that_pins_nothing_is_written_without_a_certificate(plan: Plan) -> None:
    save_graph(training(6, 2), "pageable.json")
    link = "{rate: 1MB/s, pageable: 1MB/s}"
    Path("links.yaml").write_text(f"host: {{pinned: 0}}\nlinks: {{d2h: {link}, h2d: {link}}}\n")
    options = ("--machine", "links.yaml", "--solver", "store-all", "--bound-time", "0", "-o", "p.json")
    result = plan("solve", "pageable.json", "--budget", "100%", *options, "--certificate", "pc.json")
    assert result.exit_code == 2
    assert "pinned: 0" in result.stderr
    assert Path("p.json").exists()
    assert "peak" in result.stdout
    assert not Path("pc.json").exists()


def test_that_there_is_no_schedule_is_proven(plan: Plan) -> None:
    result = plan("verify", "training.json", "--certificate", "none.json")
    assert result.exit_code == 0, result.stderr
    assert "no schedule: proven" in result.stdout
    write("larger.json", "none.json", lambda row: row.update(budget=10**9))
    result = plan("verify", "training.json", "--certificate", "larger.json")
    assert result.exit_code == 5
    assert "lower bound (any order)" in result.stderr


def test_ranks_that_communicate_are_refused_before_the_search(plan: Plan) -> None:
    write("u.json", "chain.json", lambda row: row.update(machine={"updates": {"device": "150GB/s"}}))
    assert (
        plan("shard", "u.json", "--ranks", "2", "--optimizer", "adamw", "-o", "sharded.json").exit_code == 0
    )
    result = plan("solve", "sharded.json", "--budget", "100%", "--certificate", "c.json")
    assert result.exit_code == 2
    assert "can have no certificate: leave --certificate out" in result.stderr


def test_another_chain_has_another_certificate(plan: Plan) -> None:
    save_graph(chain(5, seed=3), "other.json")
    call = ("--solver", "store-all", "-o", "o.json", "--certificate", "oc.json")
    assert plan("solve", "other.json", "--budget", "100%", *call).exit_code == 0
    assert plan("verify", "o.json", "--certificate", "oc.json").exit_code == 0
    assert plan("verify", "o.json", "--certificate", "c.json").exit_code == 6
