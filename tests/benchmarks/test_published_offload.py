"""Published rows with offloading (benchmarks/published_offload.py): hashes of estimates, and the page."""

import sys
from pathlib import Path

import pytest
from memplan.instances.models import model_named
from memplan.instances.training import Rates, Training
from memplan.instances.transformer import transformer

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
import published_offload  # noqa: E402
from published import load_rows  # noqa: E402
from published_offload_table import compare, pairs, render  # noqa: E402

ROWS, RESULTS = load_rows(kind="offload"), published_offload.load_results()
ESTIMATED = [row for row in ROWS if row["expressible"] is True]
ANEW = published_offload.anew_rows(ROWS)
JUDGING = [row for row in ESTIMATED if row["half"] == "judge"]


def test_every_row_that_can_be_expressed_was_estimated() -> None:
    assert {row["id"] for row in (*ESTIMATED, *ANEW)} == RESULTS.keys()


def test_each_row_says_which_half_it_is_in_and_why() -> None:
    assert {row["half"] for row in ROWS} == {"fit", "judge"}
    assert all(row["because"] for row in ROWS)


@pytest.mark.parametrize("row", [*ESTIMATED, *ANEW], ids=lambda row: row["id"])
def test_the_hash_is_of_settings_version_and_estimate(row: dict[str, object]) -> None:
    result = RESULTS[str(row["id"])]
    assert result["sha256"] == published_offload.digest(row, result)


@pytest.mark.parametrize("row", JUDGING, ids=lambda row: row["id"])
def test_a_judging_row_has_the_estimate_that_was_kept_before_its_figures(row: dict[str, object]) -> None:
    assert row["sha256"] == RESULTS[str(row["id"])]["sha256"]


def test_a_setting_or_an_estimate_that_changes_is_noticed() -> None:
    row, result = JUDGING[0], RESULTS[JUDGING[0]["id"]]
    kept = published_offload.digest(row, result)
    assert published_offload.digest({**row, "batch": row["batch"] + 1}, result) != kept
    assert published_offload.digest(row, {**result, "seconds": "1"}) != kept
    assert published_offload.digest(row, {**result, "version": "0"}) != kept
    # What was published, and what is said of it, come later.
    assert published_offload.digest({**row, "time": 1.0, "cause": "known"}, result) == kept


def test_the_page_is_of_the_rows_and_estimates() -> None:
    assert published_offload.TABLE.read_text() == render(ROWS, RESULTS)


def test_llmq_moves_what_its_flags_say() -> None:
    """States; weights, inputs of layers, gradients too: each needs less of the device, more of the host."""
    from dataclasses import replace

    from memplan.graphs.machine import Links, Machine
    from memplan.planner.simulator.simulate import simulate
    from memplan.sizing.accumulation import accumulating
    from memplan.sizing.ordinary_loop import ordinary_loop
    from published_llmq import llmq

    training = Training(2, 128, update="after", granularity="operation")
    graph = transformer(model_named("gpt2"), training, Rates(1e13, 1e11, 1e9, 1e12))
    graph = ordinary_loop(accumulating(graph, 4, lambda size: (size / 1e12, None)), 0)
    machine, budget = Machine(links=Links(2e10, 2e10)), 10**12
    graph = replace(graph, machine=machine)
    found: list[tuple[int, int]] = []
    flags = {"recompute": "block"}
    for more in ({}, {"weights": "host"}, {"residual": "host"}, {"gradients": "host"}):
        flags |= more
        schedule = llmq(graph, machine, budget, flags)
        least = simulate(graph, schedule, budget=budget, machine=machine).figures.least_budget
        figures = simulate(graph, schedule, budget=least, machine=machine).figures
        found.append((figures.peak, figures.host_peak))
    assert [peak for peak, _host in found] == sorted((peak for peak, _host in found), reverse=True)
    assert [host for _peak, host in found] == sorted(host for _peak, host in found)
    assert found[-1][0] < found[0][0]


def test_fused_kernels_take_less_time_than_their_operations() -> None:
    """Products keep theirs; a chain takes one pass over its inputs and results; no thread launches."""
    import torch
    from memplan.graphs.machines.presets import find_preset
    from memplan.model.iteration import Iteration
    from memplan.profiling.profile.estimate import estimate_program
    from memplan.program.graph import graph_of
    from memplan.tracing.trace import trace
    from published_compiled import with_kernels

    layer, gpu = torch.nn.Linear(512, 512), find_preset("rtx4090").gpu
    x = torch.ones(4096, 512)
    program = trace(Iteration(layer, (x,), lambda y: (y.sigmoid() * y.tanh() + y).exp().sum()))
    graph = graph_of(program, estimate_program(program, gpu), name="chain", source={})
    fused = with_kernels(graph, program, gpu).operations
    products = [place for place, name in enumerate(fused.name) if "mm" in name]
    assert products
    assert (fused.time[products] == graph.operations.time[products]).all()
    assert (fused.time <= graph.operations.time).all()
    assert fused.time.sum() < 0.7 * graph.operations.time.sum()
    assert not fused.launch.any()


def test_order_of_techniques() -> None:
    """Two rows of a series are compared if their published figures differ by more than 10 %."""
    row = {**ROWS[0], "pairs": "one", "approximate": None, "memory": None}
    result = {**RESULTS[ESTIMATED[0]["id"]]}
    first = compare({**row, "time": 1.0}, {**result, "seconds": "2.0"})
    second = compare({**row, "time": 1.2}, {**result, "seconds": "1.9"})
    near = compare({**row, "time": 1.05}, {**result, "seconds": "3.0"})
    assert [right for *_, right in pairs([first, second])] == [False]
    assert list(pairs([first, near])) == []
