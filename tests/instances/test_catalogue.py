"""The graphs that come with memplan: each is what the catalogue says, and what is known of them holds."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from exact import optimal_time
from memplan.cli.main import main
from memplan.comparison.best_known import load_best
from memplan.graphs.errors import InputError
from memplan.graphs.files.documents import read_document
from memplan.graphs.files.files import graph_digest, load_graph
from memplan.instances import checkpoints
from memplan.instances.catalogue import BEST_KNOWN, FILES, Entry, Known, corpora, entries, entry, oracles
from memplan.instances.families import decoder
from memplan.instances.tiny import tiny_graph, tiny_graphs
from memplan.planner.baseline import baseline, baseline_schedule
from memplan.planner.budget import parse_budget
from memplan.solvers.bounds.lower_bounds import lower_bounds
from memplan.solvers.problem import Problem
from memplan.solvers.registry import run as registry

LIMIT_BYTES = 5 * 10**6
KNOWN = [(one, known) for one in entries() for known in one.known]
Plan = Callable[..., Result]


@pytest.fixture
def plan() -> Plan:
    return lambda *words: CliRunner().invoke(main, [str(word) for word in words])


def least_seconds(one: Entry, known: Known) -> tuple[Problem, float]:
    graph = one.graph()
    plain = baseline(graph)
    problem = Problem(graph, parse_budget(known.budget).bytes_of(plain.peak, graph.resident_bytes))
    if known.seconds is not None:
        return problem, known.seconds
    assert known.overhead_percent is not None
    return problem, plain.time * (1 + known.overhead_percent / 100)


@pytest.mark.sampled(24)
@pytest.mark.parametrize("one", entries(), ids=lambda one: one.name)
def test_each_reads_and_is_as_large_as_it_says(one: Entry) -> None:
    graph = one.graph()
    assert graph.name == one.name
    assert len(graph.operations) == one.operations
    assert len(graph.tensors) == one.tensors
    assert int(graph.tensors.bytes.sum()) == one.bytes


def test_each_has_an_origin_and_a_licence_and_a_name_of_its_own() -> None:
    listed = entries()
    assert len({one.name for one in listed}) == len(listed)
    for one in listed:
        assert one.origin, one.name
        assert one.licence, one.name
        assert (one.file is None) != (one.family is None), one.name
    for oracle in oracles():
        assert oracle.origin, oracle.name
        assert oracle.licence, oracle.name
        assert read_document(FILES / oracle.file), oracle.name


def test_every_file_is_in_the_catalogue_and_all_are_small() -> None:
    named = {one.file for one in entries() if one.file} | {one.file for one in oracles()}
    there = [path for path in FILES.rglob("*") if path.is_file()]
    notices = {"NOTICE", "LICENSE-Apache-2.0"}
    assert {str(path.relative_to(FILES)) for path in there} == named | notices
    assert sum(path.stat().st_size for path in there) < LIMIT_BYTES


def test_what_others_made_stands_under_their_licence() -> None:
    notice = (FILES / "NOTICE").read_text()
    others = [one for one in entries() if one.licence != "memplan's own"]
    assert {one.corpus for one in others} == {"public", "minimalloc"}
    for one in others:
        assert "Apache-2.0" in one.licence
        assert str(one.file) in notice
    assert "Version 2.0, January 2004" in (FILES / "LICENSE-Apache-2.0").read_text()


@pytest.mark.sampled(6)
@pytest.mark.parametrize(("one", "known"), KNOWN, ids=[f"{one.name}-{known.budget}" for one, known in KNOWN])
def test_no_bound_is_above_what_is_known(one: Entry, known: Known) -> None:
    """Rounded figures are rounded by half of their last digit at most."""
    problem, least = least_seconds(one, known)
    bounds = lower_bounds(problem, baseline_schedule(problem.graph), least, 1.0)
    for bound in bounds:
        if bound.general:
            assert bound.seconds <= least * (1 + 1e-4), bound


@pytest.mark.scripts
@pytest.mark.parametrize(
    ("name", "solver"),
    [
        ("checkpoints-10", "checkmate"),
        ("partition-4-0", "offload-greedy"),
        ("gpt2-d38-b64", "offload-greedy"),
        ("chain_out_rand_15", "checkmate"),
        ("skip_wgrad_0", "search"),
    ],
)
def test_no_schedule_is_faster_than_what_is_known(name: str, solver: str) -> None:
    """And at least one is as fast."""
    reached = 0
    one = entry(name)
    assert one.known
    for known in one.known:
        problem, least = least_seconds(one, known)
        found = registry.solve(solver, problem, 5.0, bound_seconds=0.0).figures.time
        assert found >= least * (1 - 1e-9), known
        reached += found <= least * (1 + 1e-6)
    assert reached


def test_tiny_graphs_say_what_exhaustive_search_found() -> None:
    found = {tiny.graph.name: tiny for tiny in tiny_graphs()}
    for one in corpora()["tiny"].instances.values():
        tiny = found[one.name]
        assert tiny.whole
        reported = [(int(known.budget), known.seconds) for known in one.known]
        assert reported == [(budget, best) for budget, best in tiny.optima if best is not None]
    for budget, best in found["chain_out_rand_15"].optima:
        assert optimal_time(found["chain_out_rand_15"].graph, budget) == best


def test_chains_of_checkpoints_have_revolves_least_time() -> None:
    for steps in range(1, 6):
        for slots in range(1, 4):
            least = optimal_time(checkpoints.checkpoint_chain(steps), checkpoints.budget(slots))
            assert least == checkpoints.least_seconds(steps, slots)
    for one in corpora()["checkpoints"].instances.values():
        for known in one.known:
            slots = int(known.budget) // checkpoints.UNIT - 2
            assert known.seconds == checkpoints.least_seconds(one.arguments["steps"], slots)


def test_the_closed_form_is_that_of_the_table(public: Path) -> None:
    table = read_document(public / "oracles" / "revolve_t_l_s.json.gz")
    assert isinstance(table, dict)
    rows: list[list[int]] = table["rows"]
    assert len(rows) > 1000
    for steps, slots, extra in rows:
        assert checkpoints.advances(steps, slots) == extra


def test_a_rule_without_an_answer_is_refused() -> None:
    for wrong in (
        lambda: checkpoints.advances(0, 1),
        lambda: checkpoints.checkpoint_chain(0),
        lambda: tiny_graph("large"),
        lambda: decoder("phi-2", "v100", 4),
        lambda: decoder("phi-3", "rtx3060", 4),
    ):
        with pytest.raises(InputError, match=r"must be|unknown|not known"):
            wrong()


def test_what_is_best_is_of_these_graphs() -> None:
    digests = {one.name: graph_digest(one.graph()) for one in entries() if one.corpus != "large"}
    for best in load_best(BEST_KNOWN).values():
        assert digests[best.graph] == best.sha256, best.graph
        assert best.bound is None or best.bound <= best.time * (1 + 1e-6), best.graph


def test_no_best_is_faster_than_what_is_known() -> None:
    best = load_best(BEST_KNOWN)
    met = 0
    for one, known in KNOWN:
        if known.order == "any":
            problem, least = least_seconds(one, known)
            record = best.get((graph_digest(problem.graph), problem.budget, ""))
            met += record is not None
            assert record is None or record.time >= least * (1 - 1e-9), one.name
    assert met >= 10


def test_the_list_has_every_instance(plan: Plan) -> None:
    shown = plan("instances").stdout
    for one in entries():
        assert f"  {one.name}\n" in shown
        assert one.origin in shown
    document = json.loads(plan("instances", "--json").stdout)
    assert [one["name"] for one in document["instances"]] == [one.name for one in entries()]
    assert {one["name"] for one in document["oracles"]} == {one.name for one in oracles()}


def test_what_is_proved_to_be_the_least_is_not_open(plan: Plan) -> None:
    document = json.loads(plan("instances", "checkpoints-200", "--json").stdout)
    least = {int(known["budget"]): known["seconds"] for known in document["known"]}
    met = [best for best in document["best"] if best["bytes"] in least]
    assert len(met) == len(least)
    for best in met:
        assert best["time"] == pytest.approx(least[best["bytes"]], rel=1e-6)
        assert best["gap_percent"] < 0.01
    assert document["open"] == 0
    (closed,) = json.loads(plan("instances", "partition-4-0", "--json").stdout)["best"]
    assert closed["gap_percent"] == pytest.approx(0.0)


def test_one_corpus_alone(plan: Plan) -> None:
    document = json.loads(plan("instances", "--corpus", "traces", "--json").stdout)
    assert {one["corpus"] for one in document["instances"]} == {"traces"}
    assert len(document["instances"]) == 5
    assert document["oracles"] == []


@pytest.mark.parametrize("name", ["fcn8", "unet-4"])
def test_one_is_written(name: str, plan: Plan, tmp_path: Path) -> None:
    result = plan("instances", name, "-o", tmp_path / "graph.yaml")
    assert result.exit_code == 0, result.stderr
    assert graph_digest(load_graph(tmp_path / "graph.yaml")) == graph_digest(entry(name).graph())
    assert entry(name).origin in result.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["instances", "fnc8"], "unknown instance 'fnc8': did you mean fcn8"),
        (["instances", "--corpus", "publik"], "unknown corpus 'publik': did you mean public?"),
        (["instances", "-o", "graph.yaml"], "-o writes one instance: give its NAME"),
        (["instances", "fcn8", "--corpus", "public"], "--corpus is for the list: give NAME or --corpus"),
        (["bench", "--corpus", "publik"], "unknown corpus 'publik': did you mean public?"),
        (["bench"], "nothing to compare on: give GRAPHS, or --corpus NAME"),
    ],
)
def test_what_is_wrong_is_refused_in_one_line(words: list[str], said: str, plan: Plan) -> None:
    result = plan(*words)
    assert result.exit_code == 2
    assert said in result.stderr
    assert len(result.stderr.splitlines()) == 1
