"""Figures that others published of training on GPUs, beside what memplan estimates of the same programs.

    python benchmarks/published.py                      the rows without a result yet, then the table
    python benchmarks/published.py --only gpt2,t4-      those whose id has one of these texts
    python benchmarks/published.py --table              the table alone
    python benchmarks/published.py --rerun --only ID    again

published.yaml has the rows, results/published.csv what was estimated of each, row by row, so that an
interrupted run goes on; results/published.md gets the table. Half of the rows are for fitting the estimates'
constants and half for judging them: by a hash of the row's id, not by choice. What the operations of each row
demand is in results/published_work.json.gz, for published_fit.py.

A configuration is made by transformers, timm or torchvision, with random weights and without memory. For timm
and torchvision with a CPU-only PyTorch: pip install --no-deps --target FOLDER timm torchvision pillow, and
PYTHONPATH=FOLDER for the rows `timm-`, `small-` and `skb-`.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from select import select
from typing import IO, Any, NamedTuple

import yaml
from published_compiled import with_kernels
from published_models import model_of
from published_table import render
from published_work import load_work, save_work, work_of_schedule

HERE = Path(__file__).parent
ROWS = HERE / "published.yaml"
RESULTS, TABLE = HERE / "results" / "published.csv", HERE / "results" / "published.md"
FIGURES = ("low", "expected", "reserved", "high")
FIELDS = ("id", *FIGURES, "operations", "took", "date", "error")
LIMIT = 420.0
"""Seconds for a row, as `took` counts them: of the clock, on a machine that may have other work."""

Row = dict[str, Any]

ON_A_MACHINE = {
    *("id", "batch", "card", "host", "links", "memory", "time", "sourced", "approximate", "source"),
    *("technique", "half", "because", "differs", "pairs", "sha256", "cause", "anew", "allocator", "buffers"),
    *("compiled", "round"),
}
"""Keys in which rows of one program may differ: they share its traces."""
_ESTIMATES: dict[str, Any] = {}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", help="ids that contain one of these texts, by commas")
    parser.add_argument("--table", action="store_true", help="print the table alone")
    parser.add_argument("--rerun", action="store_true", help="estimate again what has a result")
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds for a row")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    rows = load_rows()
    if asked.row:
        by_id = {row["id"]: row for row in rows}
        estimate_rows(by_id[name] for name in asked.row.split(","))
        return
    if not asked.table:
        texts = asked.only.split(",") if asked.only else [""]
        run([row for row in rows if any(text in row["id"] for text in texts)], asked.limit, rerun=asked.rerun)
    page = render(rows, load_results(), load_work())
    TABLE.write_text(page)
    print(page)


def load_rows(source: str | None = None, kind: str = "ordinary") -> list[Row]:
    """Return the rows of a kind, each with its source and the defaults of the file.

    source: its key, if only its rows are wanted. kind: ordinary, or offload (published_offload.py).
    """
    document = yaml.load(ROWS.read_text(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    models: dict[str, Row] = document["models"]
    rows = [{**document["defaults"], **row} for row in document["rows"] if source in (None, row["source"])]
    for row in rows:
        row["source"] = document["sources"][row["source"]]
        row["model"] = models[row["model"]]
    if len({row["id"] for row in rows}) < len(rows):
        raise ValueError("two rows have one id")
    return [row for row in rows if row["kind"] == kind]


# ── estimates ───────────────────────────────────────────────────────────────────────────────────────


def run(rows: list[Row], limit: float, *, rerun: bool) -> None:
    """Estimate the rows, and write each result when it is there.

    One process estimates row after row; one that takes too long is ended with its process.
    """
    results = load_results()
    pending = [row for row in rows if row["expressible"] is True and (rerun or row["id"] not in results)]
    while pending:
        ids = ",".join(row["id"] for row in pending)
        command = [sys.executable, __file__, "--row", ids]
        # Without a buffer: `select` does not see lines that were read ahead.
        with subprocess.Popen(command, stdout=subprocess.PIPE, bufsize=0) as worker:
            assert worker.stdout is not None
            while pending:
                begun, row = time.monotonic(), pending.pop(0)
                found = _line(worker.stdout, limit)
                if "work" in found:
                    save_work(row["id"], found.pop("work"))
                took = f"{time.monotonic() - begun:.0f}"
                common = {"id": row["id"], "took": took, "date": time.strftime("%Y-%m-%d")}
                results[row["id"]] = {**common, **found}
                _save(results.values())
                print(row["id"], found, file=sys.stderr, flush=True)
                if found.get("ended"):
                    break
            worker.kill()


def _line(stream: IO[bytes], limit: float) -> dict[str, Any]:
    """Return the worker's next result; `ended` with an error if there is none in time."""
    ready, _, _ = select([stream], [], [], limit)
    line = stream.readline() if ready else b""
    if line:
        return json.loads(line)
    return {"error": "the process ended" if ready else f"took more than {limit:.0f} s", "ended": True}


def _save(results: Iterable[dict[str, Any]]) -> None:
    with RESULTS.open("w", newline="") as file:
        writer = csv.DictWriter(file, list[str](FIELDS), restval="", extrasaction="ignore")
        writer.writeheader()
        writer.writerows(results)


def estimate_rows(rows: Iterable[Row]) -> None:
    """Print the result of each row as a line of JSON."""
    for row in rows:
        try:
            found = estimate_row(row)
        except Exception as error:  # a model may fail in any way; the others go on
            found = {"error": f"{type(error).__name__}: {error}".splitlines()[0][:200]}
        print(json.dumps(found), flush=True)


def load_results() -> dict[str, dict[str, Any]]:
    if not RESULTS.exists():
        return {}
    with RESULTS.open(newline="") as file:
        return {row["id"]: row for row in csv.DictReader(file)}


class Ordinary(NamedTuple):
    """The ordinary loop of a row.

    loop: makes it of a graph of one iteration.
    constant: bytes of kernels, and of buffers that the program allocates once.
    """

    estimates: Any
    preset: Any
    loop: Callable[[Any], Any]
    constant: int


def ordinary(row: Row) -> Ordinary:
    """Trace a row's program."""
    from memplan.graphs.graph import Graph
    from memplan.graphs.machines.presets import described_preset
    from memplan.model.file import ModelFile
    from memplan.model.iteration import Iteration
    from memplan.profiling.profile.estimates import Estimates
    from memplan.profiling.profile.loops import BLOCK_BYTES, cost_of_adding, state_elements
    from memplan.profiling.profile.workspace import constant_bytes
    from memplan.sizing.accumulation import accumulating
    from memplan.sizing.eight_bit import with_eight_bit_states
    from memplan.sizing.ordinary_loop import ordinary_loop
    from memplan.updates.choice import OptimizerChoice

    def build(batch: int = row["batch"]) -> Any:
        return model_of(row, batch)

    if row["lora"]:
        import_module("peft")  # here: imported in a trace, it would look for the GPU that is not there
    kind = row["optimizer"]
    options = {"momentum": kind.get("momentum"), "fused": kind["kind"] == "fused"}
    when = kind.get("update", "after")
    choice = None if kind["name"] == "none" else OptimizerChoice(kind["name"], when, **options)

    class File(ModelFile):
        def build(self, batch: int | None = None) -> Iteration:
            # `outputs = model(…)` holds them until the next assignment.
            kept = ("logits",) if row["outputs"] == "kept" else False
            return super().build(batch)._replace(outputs=kept)

    settings = json.dumps({key: value for key, value in row.items() if key not in ON_A_MACHINE})
    if settings not in _ESTIMATES:
        file = File(f"{row['id']}.py", "build", build)
        _ESTIMATES[settings] = Estimates(file, choice, lambda _line: None)
    estimates = _ESTIMATES[settings]
    preset = described_preset(row["card"], row["host"], None)
    steps = max(row["accumulation"], 2 if row["gradients"] == "kept" else 1)
    copies = 0 if kind["kind"] in ("fused", "forloop", "8bit") else estimates.foreach_copies

    def loop(graph: Graph) -> Graph:
        if row["compiled"] == "graphs":
            graph = with_kernels(graph, estimates.program(row["batch"], preset), preset.gpu)
        if kind["kind"] == "8bit":
            elements = state_elements(estimates.program(row["batch"], preset))
            graph = with_eight_bit_states(graph, elements, BLOCK_BYTES)
        return ordinary_loop(accumulating(graph, steps, cost_of_adding(preset)), copies)

    # One of the thread of backward.
    return Ordinary(estimates, preset, loop, 2 * constant_bytes(preset.gpu) + (row["buffers"] or 0))


def estimate_row(row: Row) -> dict[str, Any]:
    """Estimate a row as `plan size` does: bytes of an iteration, and what its operations demand."""
    from dataclasses import replace

    from memplan.planner.baseline import baseline, baseline_schedule
    from memplan.solvers.problem import Problem
    from memplan.solvers.registry import run as registry

    estimates, preset, loop, _constant = program = ordinary(row)
    machine = replace(preset.machine, device_capacity=None)
    graph = loop(estimates.graph(row["batch"], preset))
    budget, schedule = baseline(graph).peak, baseline_schedule(graph)
    if row["checkpointing"]:
        budget = int(1.5 * budget)
        problem = Problem(graph, budget, machine)
        schedule = registry.solve("layer-checkpoint", problem, 60.0, {}, lambda _line: None, 0.0).schedule
    return {
        **memory_of(row, program, graph, schedule, budget),
        "operations": len(graph.operations),
        "work": work_of_schedule(estimates, row["batch"], preset, graph, schedule),
    }


def memory_of(row: Row, program: Ordinary, graph: Any, schedule: Any, budget: int) -> dict[str, int]:
    """Return the bytes of a schedule of the row's graph.

    reserved: bytes of the segments of PyTorch's allocator, which are what nvidia-smi shows.
    """
    from dataclasses import replace

    from memplan.planner.addresses.caching_allocator import reserved_peak
    from memplan.planner.addresses.lifetimes import lifetimes
    from memplan.sizing.estimate_range import memory_span

    estimates, preset, loop, constant = program
    machine = replace(preset.machine, device_capacity=None)
    worst = loop(estimates.at_worst(row["batch"], preset))
    span = memory_span(graph, worst, schedule, budget, machine, constant, reserved_peak)
    copies = lifetimes(graph, schedule, budget=budget, machine=machine)
    reserved = constant + reserved_peak(copies, expandable=row["allocator"] == "expandable")
    low, expected, high = map(int, span)
    return dict(zip(FIGURES, (low, expected, max(expected, reserved), high), strict=True))


if __name__ == "__main__":
    main()
