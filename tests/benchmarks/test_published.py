"""Published measurements (benchmarks/published.py): the page is of the rows, values and estimates of now."""

import sys
from math import log
from pathlib import Path
from statistics import median

import numpy as np
import pytest
import torch
from memplan.graphs.machines.presets import find_preset
from memplan.model.file import ModelFile
from memplan.planner.baseline import baseline, baseline_schedule
from memplan.planner.simulator.simulate import simulate
from memplan.profiling.profile.efficiency import efficiencies
from memplan.profiling.profile.estimates import Estimates
from memplan.profiling.profile.roofline import Work, seconds
from memplan.sizing.ordinary_loop import ordinary_loop
from memplan.updates.choice import OptimizerChoice
from torch import nn

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
import published  # noqa: E402
import published_fit  # noqa: E402
from published_table import compute_dtype, half, judge, render  # noqa: E402
from published_work import iteration_seconds, load_work, work_of_schedule  # noqa: E402

ROWS, RESULTS, WORK = published.load_rows(), published.load_results(), load_work()
JUDGED = [
    judge(row, RESULTS[row["id"]], WORK[row["id"]])
    for row in ROWS
    if row["sourced"] and not row["approximate"] and row["id"] in WORK and not RESULTS[row["id"]]["error"]
]


def test_every_row_that_can_be_expressed_was_estimated() -> None:
    assert {row["id"] for row in ROWS if row["expressible"] is True} == RESULTS.keys() == WORK.keys()


def test_the_page_is_of_the_values_of_now() -> None:
    assert published.TABLE.read_text() == render(ROWS, RESULTS, WORK)


def test_values_are_those_of_a_fit() -> None:
    """To 5 %: a descent along axes ends where its steps got small."""
    rows = [
        row for row in ROWS if half(row) == "fit" and row["time"] and row["sourced"] and row["id"] in WORK
    ]
    fitted, _assumed = published_fit.fit(rows, WORK)
    found = published_fit.efficiencies_of(published_fit.to_document(fitted))
    kept = efficiencies()
    assert found.compute.keys() == kept.compute.keys()
    assert found.products == pytest.approx(dict(kept.products), rel=0.05)
    assert found.unhidden == pytest.approx(kept.unhidden, rel=0.05)
    assert found.bandwidth == pytest.approx(kept.bandwidth, rel=0.05)
    assert found.launch == pytest.approx(dict(kept.launch), rel=0.05)
    assert found.kinds == pytest.approx(dict(kept.kinds), rel=0.05)


@pytest.mark.parametrize("name", ["A100", "H100", "H200", "L40S", "RTX PRO 6000", "B200"])
def test_products_take_what_was_measured_by_size(name: str) -> None:
    """Rows were fitted too: of A100 and Hopper. Shares of the others are those of square products."""
    table = [one for one in published_fit.measured_products() if one.gpu.name == name]
    off = [
        log(seconds(Work(int(one.flops), int(one.bytes), "bfloat16", "product"), one.gpu) * one.rate)
        - log(one.flops)
        for one in table
    ]
    assert len(table) == 17
    assert max(one.rate for one in table) > 1.4 * min(one.rate for one in table)
    assert median(map(abs, off)) < log(1.15)
    assert max(map(abs, off)) < log(1.45)


def test_times_of_the_half_that_nothing_was_fitted_to() -> None:
    ratios = [one.time.ratio for one in JUDGED if one.time is not None and half(one.row) == "judge"]
    assert len(ratios) > 40
    assert abs(log(median(ratios))) < log(1.15)
    assert np.mean([abs(log(ratio)) < log(1.4) for ratio in ratios]) >= 0.9


@pytest.mark.parametrize("dtype", ["float32", "tf32", "float16", "bfloat16"])
def test_times_that_nothing_was_fitted_to_by_dtype(dtype: str) -> None:
    judged = [one for one in JUDGED if one.time is not None and half(one.row) == "judge"]
    rows = [one for one in judged if compute_dtype(one.row).split()[0] == dtype]
    ratios = [one.time.ratio for one in rows if one.time is not None]
    assert len(ratios) >= 16
    assert abs(log(median(ratios))) < log(1.1)
    assert np.mean([abs(log(ratio)) < log(1.4) for ratio in ratios]) >= 0.9


def test_memory_of_the_half_that_nothing_was_fitted_to() -> None:
    found = [one.memory for one in JUDGED if one.memory is not None and half(one.row) == "judge"]
    ratios = [one.ratio for one in found]
    assert len(ratios) >= 18
    assert abs(median(ratios) - 1) < 0.05
    assert all(1 / 1.15 < ratio < 1.15 for ratio in ratios)
    assert np.mean([one.inside for one in found]) >= 0.9
    assert median(one.high / one.low for one in found) <= 1.25


def test_rows_with_weights_in_4_bits() -> None:
    """Nothing was fitted to them. A program that is known takes the published bytes to 4 %."""
    known = [one for one in JUDGED if half(one.row) == "4 bits"]
    memory = [one.memory for one in known if one.memory is not None]
    assert len(memory) >= 40
    assert all(one.inside and 0.96 < one.ratio < 1.04 for one in memory)
    assert np.mean([one.time.inside for one in known if one.time is not None]) >= 0.9
    others = [one for one in ROWS if one["quantize"] and one["approximate"]]
    assert len(others) >= 12


def test_a_row_s_seconds_are_the_simulators() -> None:
    def build(batch: int = 8) -> tuple[nn.Module, dict[str, torch.Tensor]]:
        layers = nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4)
        )
        return _Loss(layers), {"x": torch.zeros(batch, 3, 8, 8)}

    row = {"card": "v100", "accumulation": 1}
    preset = find_preset(row["card"])
    estimates = Estimates(
        ModelFile("m.py", "build", build), OptimizerChoice("adamw", "after", fused=False), lambda _line: None
    )
    graph = ordinary_loop(estimates.graph(8, preset), estimates.foreach_copies)
    schedule = baseline_schedule(graph)
    work = work_of_schedule(estimates, 8, preset, graph, schedule)
    figures = simulate(graph, schedule, budget=baseline(graph).peak, machine=preset.machine).figures
    assert iteration_seconds(row, work) == pytest.approx(figures.time)


class _Loss(nn.Module):
    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x).square().mean()
