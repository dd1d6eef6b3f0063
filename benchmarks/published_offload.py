"""Published figures of training with offloading, alongside what memplan estimates of the same technique.

    python benchmarks/published_offload.py             rows without an estimate, then the table
    python benchmarks/published_offload.py --only ID   of them those whose id has one of these texts
    python benchmarks/published_offload.py --table     the table alone

Rows are those of kind `offload` in published.yaml. Each names a solver and settings that do as the author's
program does; what they do otherwise is in `differs`. Half of the rows judge: their estimates were kept, each
with a hash, before anyone entered the published figures (`because` says how). The hash is the SHA-256 of the
row's settings, memplan's version and the estimate. A row that is estimated anew after its figures were read
is one of `fit`, and its `sha256` in published.yaml goes. A judging row may say in `anew` with which settings
it would be estimated today: that estimate is another row of the file of results, and in no statistic.

results/published_offload.csv has the estimates, results/published_offload.md the table.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import subprocess
import time
from dataclasses import replace
from typing import Any

from published import HERE, Row, load_rows, memory_of, ordinary
from published_llmq import llmq
from published_offload_table import anew_id, render

RESULTS, TABLE = HERE / "results" / "published_offload.csv", HERE / "results" / "published_offload.md"
ESTIMATE = ("low", "expected", "reserved", "high", "weights", "host", "seconds")
FIELDS = ("id", *ESTIMATE, "version", "sha256", "date", "took", "error")
FIGURES = {
    *("memory", "time", "half", "round", "because", "sha256", "pairs", "differs", "cause", "source"),
    *("id", "anew"),
}
"""Keys of a row that are no settings of the program."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", default="", help="ids that contain one of these texts, by commas")
    parser.add_argument("--table", action="store_true", help="print the table alone")
    parser.add_argument("--rerun", action="store_true", help="estimate anew all but rows that judge")
    asked = parser.parse_args()
    rows, results = load_rows(kind="offload"), load_results()
    for row in [] if asked.table else [*rows, *anew_rows(rows)]:
        done = row["id"] in results and not (asked.rerun and row["half"] != "judge")
        if done or row["expressible"] is not True or not any(t in row["id"] for t in asked.only.split(",")):
            continue
        results[row["id"]] = recorded(row)
        _save(results)
        print({key: value for key, value in results[row["id"]].items() if key != "sha256"}, flush=True)
    TABLE.write_text(render(rows, results))
    if asked.table:
        print(TABLE.read_text())


def anew_rows(rows: list[Row]) -> list[Row]:
    """Return the judging rows that say so with the settings of today."""
    return [
        {**row, **row["anew"], "id": anew_id(row), "half": "anew"} for row in rows if row["anew"] is not None
    ]


def load_results() -> dict[str, dict[str, str]]:
    if not RESULTS.exists():
        return {}
    with RESULTS.open(newline="") as file:
        return {row["id"]: row for row in csv.DictReader(file)}


def _save(results: dict[str, dict[str, str]]) -> None:
    with RESULTS.open("w", newline="") as file:
        writer = csv.DictWriter(file, list[str](FIELDS), restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(results.values())


def settings_of(row: Row) -> dict[str, Any]:
    """Return what an estimate is made from; a setting that is not there is as one that no row had yet."""
    return {key: value for key, value in row.items() if key not in FIGURES and value is not None}


def digest(row: Row, result: dict[str, str]) -> str:
    """Return the hash of a row's settings, memplan's version and the estimate."""
    estimate = {name: result[name] for name in ESTIMATE}
    text = json.dumps([settings_of(row), result["version"], estimate], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def recorded(row: Row) -> dict[str, str]:
    """Estimate a row; return the line of the file of results."""
    began = time.process_time()
    try:
        found: dict[str, Any] = {**estimate(row), "error": ""}
    except Exception as error:  # a solver may refuse in any way; the others go on
        found = {**dict.fromkeys(ESTIMATE, ""), "error": f"{type(error).__name__}: {error}".splitlines()[0]}
    line = {"id": row["id"], "version": _version(), "date": time.strftime("%Y-%m-%d"), **found}
    line["took"] = f"{time.process_time() - began:.0f}"
    texts = {name: str(value) for name, value in line.items()}
    return {**texts, "sha256": digest(row, texts)}


def _version() -> str:
    from memplan import __version__

    command = ["git", "rev-parse", "--short=12", "HEAD"]
    return f"{__version__}+{subprocess.check_output(command, cwd=HERE, text=True).strip()}"


def estimate(row: Row) -> dict[str, Any]:
    """Estimate a row: bytes of an iteration by the technique, and its seconds, of an update if there is one.

    weights: bytes of the parameters on the device before the iteration. host: bytes there.
    """
    from memplan.graphs.graph import Kind
    from memplan.graphs.machine import Links
    from memplan.planner.baseline import baseline
    from memplan.planner.simulator.simulate import simulate
    from memplan.sizing.accumulation import earlier_seconds
    from memplan.solvers.problem import Problem
    from memplan.solvers.registry.run import solve

    program = ordinary(row)
    if row["links"]:
        links = Links(float(row["links"]), float(row["links"]))
        machine = replace(program.preset.machine, links=links)
        program = program._replace(preset=replace(program.preset, machine=machine))
    machine = replace(program.preset.machine, device_capacity=None)
    graph = program.loop(program.estimates.graph(row["batch"], program.preset))
    # The technique's settings say what leaves the device, not the room there.
    roomy = Problem(graph, 2 * baseline(graph).peak, machine)
    technique = row["technique"]
    settings = {key: str(value) for key, value in technique["settings"].items()}
    if technique["solver"] == "llmq":
        schedule = llmq(graph, machine, roomy.budget, settings)
    else:
        schedule = solve(technique["solver"], roomy, None, settings, bound_seconds=0).schedule
    # With room, copies down queue while operations go on. The projects bound what is in flight: here with
    # the least budget, where an operation waits for the copies that free what it needs.
    budget = simulate(graph, schedule, budget=roomy.budget, machine=machine).figures.least_budget
    figures = simulate(graph, schedule, budget=budget, machine=machine).figures
    earlier = earlier_seconds(graph, schedule, budget, machine)
    parameters = graph.tensors.kind == Kind.PARAMETER
    return {
        **memory_of(row, program, graph, schedule, budget),
        "weights": int(graph.tensors.bytes[parameters].sum()),
        "host": figures.host_peak,
        "seconds": f"{earlier + figures.time:.4f}",
    }


if __name__ == "__main__":
    main()
