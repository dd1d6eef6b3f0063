"""Two models of sharded training: tensors spread over the ranks, and gathers and scatters as operations.

    spread        weights and gradients are tensors with a copy on the peers; a gather is a prefetch, a
                  scatter an offload (graphs/transformations/sharding.py)
    operations    full weights are results of operations on the queue comm
                  (graphs/transformations/gathering.py)

Protocol: graphs, SGD's updates, ranks, rates and budgets of `benchmarks/sharded.py`. Both graphs are of the
same training, and a budget is the same number of bytes in both. Each model is searched for `--seconds` of
processor time, so that a busy machine does not change the comparison:

    half       `joint` from its own starts. It accepts graphs by operations on machines with links alone, so
               there is a host of 0 bytes; it solves two graphs with one queue first, as `plan solve` does
    half       `joint` from that plan and from the starts that the model `spread` has: FSDP2's policies and
               `fsdp-prefetch`; if none fits, `sharded-search`, which takes a quarter of the time first

`as_operations` ports starts: it writes a schedule of the one graph as one of the other. The time of policies
and of `fsdp-prefetch` does not count. The simulator verifies and times all schedules. Per cell, in ms:

    policy        the fastest of FSDP2's policies that fits, in both models
    prefetch      `fsdp-prefetch`, or `sharded-search`, in both models
    own           plans of `joint` from its own starts, after half of the time
    plan          the best of both halves
    search        by operations: `search` for all of the time, without links, as `auto` would
    translated    the plan of the model `spread`, as operations
    ratio         the time of the faster of both by operations, plan and search, relative to the plan of the
                  model `spread`

With a latency of 0, at which no collectives are joined, both models must count the same seconds and bytes for
each of FSDP2's policies, and the same minimum memory; the run ends if they do not. One line of JSON a cell,
written at once; cells that are in the file are skipped.

    python benchmarks/sharded_by_operations.py llama.json.gz --cells 350:5.4,45:2.8 -o rows.jsonl
    python benchmarks/sharded_by_operations.py --table rows.jsonl
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from memplan.graphs.files.files import load_graph
from memplan.graphs.graph import Graph, Kind
from memplan.graphs.machine import Link, Links, Machine, Memory, Peers
from memplan.graphs.transformations.gathering import with_gathers
from memplan.graphs.transformations.sharding import sharded
from memplan.graphs.transformations.updates import SGD, with_updates
from memplan.planner.bounds import minimum_memory
from memplan.planner.errors import InvalidScheduleError
from memplan.planner.schedule.schedule import Initial, Schedule, ScheduleStep, Verb, compute, delete
from memplan.planner.simulator.simulate import simulate
from memplan.solvers import annealing, clock
from memplan.solvers.offloading.joint import joint
from memplan.solvers.offloading.sharded import fsdp_prefetch, sharded_search
from memplan.solvers.offloading.sharded.fsdp import policy_schedules
from memplan.solvers.problem import InfeasibleError, Options, Problem
from memplan.solvers.recomputation.search import rounds
from memplan.solvers.registry.run import solve

LATENCY, UPDATE_RATE = 30e-6, 150e9
NO_HOST = Machine(host_capacity=0, links=Links(Link(50e9, 0.0), Link(50e9, 0.0)))
"""A machine on which `joint` accepts graphs without spread tensors, and nothing can be offloaded."""
CELLS = "350:5.4,45:2.8,45:5.4,11:2.8,11:7.8"
"""Rates in GB/s and budgets in GiB of the table in docs/sharded.md."""
ROUNDING = 1e-12
MILLISECONDS = 1e3

Timed = tuple[Schedule, float]
"""A schedule and the seconds of its iteration."""


class Models(NamedTuple):
    """The graphs of one rank of the same training."""

    spread: Graph
    operations: Graph


def both_models(base: Graph, peers: Peers) -> Models:
    """Return both graphs of a training whose graph has gradients and no updates."""
    updated = with_updates(base, optimizer=SGD, when="in-backward", device_rate=UPDATE_RATE)
    machine = Machine(links=Links(peers=peers))
    return Models(replace(sharded(updated, peers), machine=machine), with_gathers(updated, peers))


def as_operations(models: Models, schedule: Schedule) -> Schedule:
    """Return a schedule of the spread tensors with gathers and scatters as operations, in the same order.

    Full weights are results of an iteration there, so none is on the device when one begins. The last gather
    of a weight that stays for the next iteration is issued first instead.
    """
    spread, operations = models
    number = {name: o for o, name in enumerate(operations.operations.name)}
    tensor = {name: x for x, name in enumerate(operations.tensors.name)}

    def step(verb: int, target: int, where: int) -> ScheduleStep:
        if verb == Verb.COMPUTE:
            return compute(number[spread.operations.name[target]], where)
        name = spread.tensors.name[target]
        if verb == Verb.PREFETCH:
            return compute(number[f"{name}/gather"])
        if verb == Verb.OFFLOAD:
            return compute(number[f"{name}/scatter"])
        if spread.tensors.kind[target] == Kind.PARAMETER:
            return delete(tensor[f"{name}.full"])
        return delete(
            tensor[f"{name}.share" if where == Memory.PEERS and target in spread.tensors.spread else name]
        )

    rows = list(schedule.rows())
    last = {target: place for place, (verb, target, _where) in enumerate(rows) if verb == Verb.PREFETCH}
    kept = schedule.initial.at(Memory.DEVICE, Memory.PEERS)
    moved = sorted(last[x] for x in kept if x in last)
    never = [compute(number[f"{spread.tensors.name[x]}/gather"]) for x in sorted(kept - last.keys())]
    order = [*moved, *(place for place in range(len(rows)) if place not in set(moved))]
    steps = [*never, *(step(*rows[place]) for place in order)]
    verbs, targets, places = zip(*steps, strict=True)
    return Schedule(
        np.array(verbs, np.uint8), np.array(targets, np.int32), np.array(places, np.int32), Initial()
    )


def differences(models: Models) -> Iterator[str]:
    """Yield a line for each policy of FSDP2's that the models count otherwise, and for the minimum memory."""
    least = minimum_memory(models.spread, models.spread.machine), minimum_memory(models.operations, Machine())
    if least[0] != least[1]:
        yield f"minimum memory: {least[0]:,} B as spread tensors, {least[1]:,} B as operations"
    for policy, schedule, counted in policy_schedules(Problem(models.spread, budget=1)):
        other = simulate(models.operations, as_operations(models, schedule)).figures
        same = abs(counted.time - other.time) <= ROUNDING and counted.peak == other.peak
        if not same or counted.least_budget != other.least_budget:
            yield f"{policy}: {counted} as spread tensors, {other} as operations"


def starts(problem: Problem, seconds: float) -> Iterator[tuple[str, Schedule]]:
    """Yield the starts of the model `spread`. seconds: for `sharded-search`."""
    found = False
    for policy, schedule, figures in policy_schedules(problem):
        if figures.least_budget <= problem.budget:
            found = True
            yield str(policy), schedule
    with suppress(InfeasibleError):
        yield "prefetch", fsdp_prefetch.solve(problem, Options(None, fsdp_prefetch.Settings())).schedule
        found = True
    if not found:
        with suppress(InfeasibleError):
            yield (
                "search",
                sharded_search.solve(problem, Options(seconds, sharded_search.Settings())).schedule,
            )


def searched(problem: Problem, known: Sequence[Timed], seconds: float) -> tuple[Timed | None, Timed | None]:
    """Search for a time. Returns the plan from own starts, after half of it, and the best plan."""
    own = None
    with suppress(InfeasibleError):
        own = solve("joint", problem, seconds / 2, bound_seconds=0)
        own = own.schedule, own.figures.time
    plans = [*known, *([] if own is None else [own])]
    if not plans:
        return None, None
    found = joint.improved(problem, Options(seconds / 2, joint.Settings()), plans).schedule
    return own, (found, _seconds(problem, found))


def _seconds(problem: Problem, schedule: Schedule) -> float:
    return simulate(problem.graph, schedule, budget=problem.budget, machine=problem.machine).figures.time


def _timed(problem: Problem, schedule: Schedule) -> Timed | None:
    """Return the schedule with its time; None if it breaks a rule or the budget."""
    with suppress(InvalidScheduleError):
        return schedule, _seconds(problem, schedule)
    return None


def cell(path: Path, rate: float, gib: float, ranks: int, seconds: float) -> dict[str, Any]:
    base, peers = load_graph(path), Peers(rate * 1e9, LATENCY, ranks=ranks)
    if lines := list(differences(both_models(base, replace(peers, latency=0.0)))):
        raise SystemExit("\n".join(["the models count otherwise:", *lines]))
    models = both_models(base, peers)
    budget = int(gib * 2**30) + models.spread.share_bytes
    spread, operations = Problem(models.spread, budget), Problem(models.operations, budget, NO_HOST)
    named = list(starts(spread, seconds / 4))
    known = [(name, _timed(spread, schedule)) for name, schedule in named]
    ported = [(name, _timed(operations, as_operations(models, schedule))) for name, schedule in named]
    left = seconds * (0.75 if any(name == "search" for name, _schedule in named) else 1.0)
    begun, alone = time.process_time(), None
    own, plan = searched(spread, [one for _name, one in known if one], left)
    parted = time.process_time()
    other_own, other_plan = searched(operations, [one for _name, one in ported if one], left)
    ended = time.process_time()
    with suppress(InfeasibleError):
        alone = (
            MILLISECONDS
            * solve("search", replace(operations, machine=None), seconds, bound_seconds=0).figures.time
        )
    translated = plan and _timed(operations, as_operations(models, plan[0]))
    return {
        "graph": path.name,
        "rate": rate,
        "gib": gib,
        "seconds": seconds,
        "minimum_gib": (minimum_memory(models.operations, Machine()) - models.spread.share_bytes) / 2**30,
        "starts": [_milliseconds(each) for each in (known, ported)],
        "own": [one and MILLISECONDS * one[1] for one in (own, other_own)],
        "plan": [one and MILLISECONDS * one[1] for one in (plan, other_plan)],
        "search": alone,
        "translated": translated and MILLISECONDS * translated[1],
        "kept": plan and len(plan[0].initial.at(Memory.DEVICE, Memory.PEERS)),
        "processor_seconds": [parted - begun, ended - parted],
    }


def _milliseconds(found: Sequence[tuple[str, Timed | None]]) -> dict[str, float]:
    return {name: MILLISECONDS * one[1] for name, one in found if one is not None}


def print_table(path: Path) -> None:
    titles = (
        "GB/s",
        "GiB",
        "policy",
        "prefetch or search",
        "own",
        "plan",
        "translated",
        "weights kept",
        "ratio",
    )
    print("|", " | ".join(titles), "|")
    print("|", " | ".join("---" for _title in titles), "|")
    for row in map(json.loads, path.read_text().splitlines()):
        policies = [
            [t for name, t in each.items() if name not in ("prefetch", "search")] for each in row["starts"]
        ]
        others = [[t for name, t in each.items() if name in ("prefetch", "search")] for each in row["starts"]]
        pairs = [[min(times, default=None) for times in each] for each in (policies, others)]
        cells = [_pair(each) for each in (*pairs, row["own"], row["plan"])]
        found = min((t for t in (row["plan"][1], row["search"]) if t is not None), default=None)
        ratio = found / row["plan"][0] - 1 if found and row["plan"][0] else None
        shown = [
            f"{row['rate']:g}",
            f"{row['gib']:g}",
            *cells,
            *map(_number, (row["search"], row["translated"])),
            str(row["kept"]),
        ]
        print("|", " | ".join([*shown, "" if ratio is None else f"{ratio:+.1%}"]), "|")


def _pair(times: Sequence[float | None]) -> str:
    return " / ".join(map(_number, times))


def _number(milliseconds: float | None) -> str:
    return "–" if milliseconds is None else f"{milliseconds:.1f}"


def count_processor_seconds() -> None:
    """Let time limits of searches count this process's processor time."""
    for module in (clock, annealing, rounds):
        setattr(module, "monotonic", time.process_time)  # noqa: B010  (no module exports it)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("graph", type=Path, nargs="?")
    parser.add_argument(
        "--cells", default=CELLS, help="GB/s that a device receives, and GiB above the shares"
    )
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=8.0, help="processor seconds of each search")
    parser.add_argument("--table", type=Path, help="print this file of rows")
    parser.add_argument("-o", "--output", type=Path)
    words = parser.parse_args()
    if words.table is not None:
        print_table(words.table)
    if words.graph is None:
        return
    if words.output is None:
        parser.error("-o is missing")
    count_processor_seconds()
    lines: list[str] = words.output.read_text().splitlines() if words.output.exists() else []
    done = {(row["graph"], row["rate"], row["gib"]) for row in map(json.loads, lines)}
    for rate, gib in (map(float, each.split(":")) for each in words.cells.split(",")):
        if (words.graph.name, rate, gib) not in done:
            row = cell(words.graph, rate, gib, words.ranks, words.seconds)
            with words.output.open("a") as file:
                print(json.dumps(row), file=file, flush=True)


if __name__ == "__main__":
    main()
