"""`plan solve --set KEY=VALUE` with any values: a schedule that holds, or one line."""

from __future__ import annotations

import shlex
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import NamedTuple

from memplan.graphs.files.files import save_graph
from memplan.graphs.generators import chain, layered
from memplan.planner.baseline import baseline
from memplan.planner.bounds import minimum_memory
from memplan.solvers.problem import Problem
from memplan.solvers.registry import run as registry
from small_offload import small_case
from solver_cases import warm_up
from training_graphs import training

from .area import Area, Fault, Verdict
from .command_line import faults_of

WORDS = (
    *(
        "auto",
        "highs",
        "PULP_CBC_CMD",
        "gurobi",
        "host",
        "disk",
        "off",
        "keep",
        "recompute",
        "offload",
        "loky",
    ),
    *(
        "h-ilp",
        "rk-checkmate",
        "checkmate",
        "rotor",
        "sequential",
        "h-partition",
        "dask",
        "ray",
        "exact",
        "greedy",
    ),
    *("analytic", "search", "all"),
)
VALUES = (
    *(
        "0",
        "1",
        "2",
        "3",
        "7",
        "100",
        "-1",
        "2147483647",
        "2147483648",
        "1000000000000",
        "9" * 30,
        "0.5",
        "1.0",
    ),
    *(
        "1e-300",
        "1e300",
        "nan",
        "inf",
        "-inf",
        "-0.5",
        "true",
        "yes",
        "",
        " ",
        "x",
        "no-such",
        "é",
        "\n",
        "1_0",
    ),
    *("0x10", "1 2", "٣", *WORDS),
)
FITTING: dict[type, tuple[str, ...]] = {
    int: (*map(str, range(8)), "20", "100", "5000", "2147483647"),
    float: ("0", "0.0", "0.3", "1", "0.999", "1e-9", "5", "1e9"),
    bool: ("true", "false"),
    str: WORDS,
    type(None): ("1", "2", "100"),
}
"""By the type of a setting's default."""


class SettingsCase(NamedTuple):
    problem: Problem
    solver: str
    settings: tuple[tuple[str, str], ...]
    seconds: float


class SettingsArea(Area):
    name = "settings"
    patience = 120.0

    def __init__(self) -> None:
        self.folder = Path(tempfile.gettempdir())

    def warm_up(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="memplan-fuzz-settings-"))
        warm_up([entry.name for entry in registry.entries()])

    def make(self, random: Random) -> SettingsCase:
        solver = random.choice([entry.name for entry in registry.entries()])
        known = registry.settings_of(solver) or {"moves": 1}
        chosen: dict[str, str] = {}
        for _setting in range(random.choice((1, 1, 2, 3))):
            key = random.choice(list(known))
            likely = FITTING[type(known[key])] if random.random() < 0.7 else VALUES
            unknown = random.random() < 0.03
            chosen[random.choice(("", "x", " ", "time_limit")) if unknown else key] = random.choice(likely)
        return SettingsCase(
            _problem(random, registry.entry(solver).needs_links),
            solver,
            tuple(chosen.items()),
            random.choice((0.2, 0.5, 0.001, 1e-9)),
        )

    def judge(self, case: SettingsCase) -> Verdict:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        words = self._words(case, self.folder)
        faults, outcome = faults_of(words, self.folder)
        if outcome == "exit code 0":
            faults += faults_of(["check", "schedule.json", "--graph", "graph.json"], self.folder)[0]
        named = [Fault(f"{case.solver} {kind}", f"{case.solver} {detail}") for kind, detail in faults]
        return Verdict(named, {outcome: 1})

    def smaller(self, case: SettingsCase) -> Iterator[SettingsCase]:
        for place in range(len(case.settings)):
            yield case._replace(settings=case.settings[:place] + case.settings[place + 1 :])

    def write(self, case: SettingsCase, folder: Path, fault: Fault | None) -> list[str]:
        return [shlex.join(["plan", *self._words(case, folder)])]

    def _words(self, case: SettingsCase, folder: Path) -> list[str]:
        problem = case.problem
        save_graph(problem.graph, folder / "graph.json")
        words = ["solve", "graph.json", "--budget", str(problem.budget), "--solver", case.solver]
        words += ["--time-limit", str(case.seconds), "--bound-time", "0.2", "-o", "schedule.json"]
        for key, value in case.settings:
            words += ["--set", f"{key}={value}"]
        return words


def _problem(random: Random, links: bool) -> Problem:
    """The graph carries its machine."""
    seed = random.randrange(1000)
    if links or random.random() < 0.2:
        case = small_case(seed)
        return Problem(replace(case.graph, machine=case.machine), case.budget)
    graph = random.choice(
        (chain(5, seed=seed), layered(12, seed=seed, width=4), training(2, seed, update="end"))
    )
    low, high = minimum_memory(graph), baseline(graph).peak
    return Problem(graph, random.randint(low, high))


AREA = SettingsArea()
