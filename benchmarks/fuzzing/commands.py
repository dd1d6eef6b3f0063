"""Command lines of all commands that need no model, over sound and faulty files: an exit code, one line."""

from __future__ import annotations

import json
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from random import Random
from typing import NamedTuple

from memplan.graphs.files.documents import write_document
from memplan.graphs.files.files import save_graph
from memplan.graphs.files.machine import save_machine
from memplan.graphs.graph import Graph
from memplan.graphs.partition.partition import partition
from memplan.planner.baseline import baseline_schedule
from memplan.planner.schedule.file import save_schedule
from odd_graphs import odd_graph, odd_machine
from training_graphs import training

from .area import Area, Fault, Verdict
from .command_line import faults_of
from .graphs import smaller_graphs
from .shrink import without

FILES = (
    *(
        "graph.json",
        "graph.json",
        "graph.json",
        "schedule.json",
        "schedule.json",
        "machine.json",
        "machine.json",
    ),
    *("table.csv", "none.json", "folder", "folder.json", "empty.json", "text.txt", "graph.yaml", "model.py"),
    *("", "-", ".", "/dev/null", "/", "a\x1b\nb.json", "é.json", "x" * 300 + ".json", "no/such/place.json"),
)
OUTPUTS = (
    "out.json",
    "out.yaml",
    "out.json.gz",
    "out.csv",
    "no/out.json",
    "folder",
    "out",
    "/dev/full",
    "graph.json",
)
NUMBERS = (
    "0",
    "1",
    "2",
    "7",
    "-1",
    "0.5",
    "1e300",
    "nan",
    "inf",
    "1e-9",
    "x",
    "",
    "9" * 40,
    "0x1",
    "1,2",
    ",",
    "1e3",
)
BUDGETS = (
    *(
        "50%",
        "100%",
        "0%",
        "1%",
        "150%",
        "1e9%",
        "12GB",
        "1",
        "0",
        "-1",
        "11.5GiB",
        "1e999",
        "nan",
        "",
        "x",
        "%",
    ),
    *("75%,50%", "75%,,", "1B", "1e400GB", ".5%", "100", "1000"),
)
NAMES = (
    "rtx3060",
    "RTX 3060",
    "h100",
    "thesis",
    "",
    "x",
    "é",
    "\x1b[31m",
    "a" * 3000,
    "machine.json",
    "--",
    "1",
)
FLAGS = {"--json": 0.4, "--quiet": 0.1, "--debug": 0.01, "--help": 0.01, "--no-such": 0.01, "-o": 0.02}


class CommandCase(NamedTuple):
    """seed: of the files' contents, where they are not the graph's."""

    words: tuple[str, ...]
    graph: Graph
    seed: int


class Commands(Area):
    name = "commands"
    patience = 120.0

    def __init__(self) -> None:
        self.folder = Path(tempfile.gettempdir())

    def warm_up(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="memplan-fuzz-commands-"))
        found = partition(training(3, 0), top=2)
        assert found.root.identity  # compiled
        with suppress(ModuleNotFoundError):
            import_module("torch")  # some commands do, before they find a fault

    def make(self, random: Random) -> CommandCase:
        command = random.choice(list(GRAMMAR))
        words = [command, *GRAMMAR[command](random)]
        words += [flag for flag, share in FLAGS.items() if random.random() < share]
        if random.random() < 0.05:
            words.pop(random.randrange(len(words)))
        return CommandCase(tuple(words) or ("solvers",), odd_graph(random), random.randrange(10**9))

    def judge(self, case: CommandCase) -> Verdict:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        _files(case, self.folder)
        faults, outcome = faults_of(case.words, self.folder)
        command = case.words[0] if case.words[0] in GRAMMAR else "other"
        return Verdict(faults, {outcome: 1, command: 1})

    def smaller(self, case: CommandCase) -> Iterator[CommandCase]:
        for words in without(case.words[1:]):
            yield case._replace(words=(case.words[0], *words))
        for graph in smaller_graphs(case.graph):
            yield case._replace(graph=graph)

    def write(self, case: CommandCase, folder: Path, fault: Fault | None) -> list[str]:
        _files(case, folder)
        return [shlex.join(["plan", *case.words])]


def _files(case: CommandCase, folder: Path) -> None:
    """All that FILES names and that there is."""
    graph, random = case.graph, Random(case.seed)
    save_graph(graph, folder / "graph.json")
    save_graph(graph, folder / "graph.yaml")
    save_graph(graph, folder / "é.json")
    predicted = random.choice(({}, {"time": 1e300, "peak": 1}, {"time": "x"}, {"lower_bound": 1e308}))
    budget = random.choice((None, 0, 1, 2**62))
    schedule = baseline_schedule(graph)
    save_schedule(folder / "schedule.json", graph, schedule, budget=budget, predicted=predicted)
    if random.random() < 0.3:
        document = json.loads((folder / "schedule.json").read_text())
        random.shuffle(document["steps"])
        write_document(document, folder / "schedule.json")
    save_machine(odd_machine(random), folder / "machine.json")
    (folder / "folder").mkdir(exist_ok=True)
    (folder / "folder.json").mkdir(exist_ok=True)
    (folder / "empty.json").write_text("")
    (folder / "text.txt").write_text("text")
    (folder / "model.py").write_text("def build():\n    raise ValueError('no model')\n")


def _some(random: Random, *options: tuple[str, tuple[str, ...]], share: float = 0.35) -> list[str]:
    return [
        word for name, values in options if random.random() < share for word in (name, random.choice(values))
    ]


def _file(random: Random, usual: str) -> str:
    return usual if random.random() < 0.8 else random.choice(FILES)


def _solvers() -> tuple[str, ...]:
    """The quick ones at most times."""
    return (
        "store-all",
        "store-all",
        "chen-sqrt",
        "rotor",
        "l2l",
        "zero-offload",
        "tw-remat",
        "no-such",
        "",
        "Rotor",
    )


def _solve(random: Random) -> list[str]:
    return [
        _file(random, "graph.json"),
        *("--solver", random.choice(_solvers())),
        *_some(random, ("--budget", BUDGETS), share=0.9),
        *_some(
            random, ("--time-limit", ("0.2", "1", *NUMBERS)), ("--bound-time", ("0", "0.2", *NUMBERS[:7]))
        ),
        *_some(
            random,
            ("--machine", FILES[5:7] + NAMES),
            ("-o", OUTPUTS),
            ("--set", ("a=1", "=", "x", "slots=5")),
        ),
    ]


def _check(random: Random) -> list[str]:
    return [
        _file(random, "schedule.json"),
        *("--graph", _file(random, "graph.json")),
        *_some(random, ("--budget", BUDGETS), ("--machine", FILES[5:7] + NAMES)),
    ]


def _show(random: Random) -> list[str]:
    return [_file(random, "schedule.json"), "--graph", _file(random, "graph.json")]


def _partition(random: Random) -> list[str]:
    numbers = [(name, NUMBERS) for name in ("--top", "--lower", "--alpha", "--tolerance", "--depth")]
    return [_file(random, "graph.json"), *_some(random, *numbers, share=0.25)]


def _machine(random: Random) -> list[str]:
    """Never one that measures: that takes ten seconds."""
    return random.choice(
        (["--list"], [random.choice(NAMES)], ["--disk", "text.txt"], ["--device", "no-such"])
    ) + _some(random, ("-o", OUTPUTS))


def _bench(random: Random) -> list[str]:
    return [
        _file(random, "graph.json"),
        *("--solvers", random.choice((*_solvers(), "store-all,rotor", "store-all,store-all", ","))),
        *("--budgets", random.choice(BUDGETS)),
        *("--time-limit", random.choice(("0.2", "1", *NUMBERS))),
        *("--bound-time", "0"),
        *_some(
            random,
            ("-o", OUTPUTS),
            ("--published", FILES),
            ("--set", ("rotor.slots=5", "x.y=1", "slots=5", ".=")),
        ),
    ]


def _size(random: Random) -> list[str]:
    """Of a model that cannot be built: what is asked before."""
    return [
        _file(random, "model.py"),
        *_some(random, ("--gpu", NAMES), share=0.9),
        *_some(
            random,
            ("--budget", BUDGETS),
            ("--batch", NUMBERS),
            ("--solver", _solvers()),
            ("--time-limit", NUMBERS),
        ),
        *_some(
            random,
            ("--optimizer", ("adamw", "none", "x")),
            ("--update", ("after", "x")),
            ("--machine", FILES),
        ),
    ]


GRAMMAR = {
    "solve": _solve,
    "check": _check,
    "show": _show,
    "partition": _partition,
    "machine": _machine,
    "bench": _bench,
    "size": _size,
    "solvers": lambda random: [],
}

AREA = Commands()
