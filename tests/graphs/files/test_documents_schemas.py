"""The JSON Schemas of docs/schemas: files and output satisfy them; they refuse no more than readers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from memplan.cli.main import COMMANDS, main
from memplan.graphs.errors import InputError
from memplan.graphs.files.documents import read_document
from memplan.graphs.files.files import load_graph, save_graph
from memplan.graphs.files.machine import machine_from_document, machine_to_document
from memplan.graphs.files.read import graph_from_document
from memplan.graphs.generators import chain
from memplan.graphs.machines.presets import presets
from memplan.instances.catalogue import entries
from memplan.planner.schedule.file import schedule_from_document

# Any: the package is of the extra `dev`, and has no types of its own
jsonschema: Any = pytest.importorskip("jsonschema")

FOLDER = Path(__file__).parents[3] / "docs" / "schemas"
SCHEMAS: dict[str, Any] = {
    path.name.split(".")[0]: json.loads(path.read_text()) for path in FOLDER.glob("*.json")
}
FLUID = ("--time-limit", "1", "--no-static-layout")
MODEL = "import torch\n\ndef build():\n    return torch.nn.Linear(2, 2), (torch.ones(1, 2),), torch.sum\n"


def fault(document: object, name: str, part: str = "") -> str | None:
    """Return the first fault of a document by a schema, None if it satisfies it."""
    schema = SCHEMAS[name]
    if part:
        schema = {**schema, "$ref": f"#/$defs/{part}"}
    found = jsonschema.exceptions.best_match(jsonschema.Draft202012Validator(schema).iter_errors(document))
    return found and f"{found.json_path}: {found.message}"


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Run `plan … --json` in a new folder, and return what it prints."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str, code: int = 0) -> Any:
        result = CliRunner().invoke(main, [*words, "--json"])
        assert result.exit_code == code, result.stderr
        document = json.loads(result.stdout)
        assert document["command"] == words[0]
        assert fault(document, "plan-output") is None  # one of the commands' objects, and no other
        return document

    return run


@pytest.mark.parametrize("name", sorted(SCHEMAS))
def test_each_is_a_schema(name: str) -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMAS[name])


@pytest.mark.scripts
def test_every_instance_and_every_machine(tmp_path: Path) -> None:
    for entry in entries():
        if entry.path is not None and entry.operations < 2000:
            assert fault(read_document(entry.path), "plan-graph") is None, entry.name
    for preset in presets().values():
        assert fault(machine_to_document(preset.machine), "plan-machine") is None, preset.name


def test_files_and_output_of_the_whole_way(plan: Callable[..., Any]) -> None:
    Path("m.py").write_text(MODEL)
    made = plan("profile", "m.py", "--gpu", "rtx3060", "--optimizer", "adamw")
    assert fault(made, "plan-output", "profile") is None
    assert fault(read_document(Path("m.graph.json")), "plan-graph") is None
    plan("machine", "a100", "-o", "a100.yaml")
    assert fault(read_document(Path("a100.yaml")), "plan-machine") is None
    for budget, solver in (("100%", "store-all"), ("80%", "joint")):
        call = ("solve", "m.graph.json", "--budget", budget, "--solver", solver)
        call = (*call, *FLUID) if solver == "joint" else call
        assert fault(plan(*call, "-o", f"{solver}.json"), "plan-output", "solve") is None
        assert fault(read_document(Path(f"{solver}.json")), "plan-schedule") is None
        assert fault(plan("check", f"{solver}.json"), "plan-output", "check") is None
        assert fault(plan("show", f"{solver}.json"), "plan-output", "show") is None
    plan(
        "solve",
        "m.graph.json",
        "--budget",
        "100%",
        "--solver",
        "store-all",
        "-o",
        "a.json",
        "--certificate",
        "c.json",
    )
    proven = plan("verify", "a.json", "--certificate", "c.json")
    assert fault(proven, "plan-output", "verify") is None
    compared = plan("compare", "store-all.json", "joint.json")
    assert fault(compared, "plan-output", "compare") is None
    planned = plan("optimize", "m.py", "--gpu", "rtx3060", "--solver", "store-all")
    assert fault(planned, "plan-output", "optimize") is None


def test_refusals_and_shards(plan: Callable[..., Any]) -> None:
    save_graph(chain(6), "g.json")
    refused = plan("solve", "g.json", "--budget", "30%", "--solver", "rotor", code=3)
    assert fault(refused, "plan-output", "solve-refused") is None
    assert fault(refused, "plan-output", "solve") is not None
    plan("solve", "g.json", "--budget", "100%", "--solver", "store-all", "-o", "s.json")
    schedule = json.loads(Path("s.json").read_text())
    schedule["steps"].pop(0)
    Path("broken.json").write_text(json.dumps(schedule))
    invalid = plan("check", "broken.json", code=5)
    assert fault(invalid, "plan-output", "check-refused") is None
    graph = json.loads(Path("g.json").read_text())
    graph["machine"] = {"updates": {"device": "150GB/s"}}
    Path("u.json").write_text(json.dumps(graph))
    plan("shard", "u.json", "--ranks", "2", "--optimizer", "adamw", "-o", "sharded.json")
    assert fault(read_document(Path("sharded.json")), "plan-graph") is None


def test_every_other_command(plan: Callable[..., Any]) -> None:
    save_graph(chain(6), "g.json")
    plan("solve", "g.json", "--budget", "100%", "--solver", "store-all", "-o", "s.json")
    plan("export", "moccasin", "g.json", "-o", "moccasin.json", "--lossy")
    for words, part in (
        (("env",), "env"),
        (("solvers",), "solvers"),
        (("instances",), "instances"),
        (("instances", "unet"), "instance"),
        (("machine", "--list"), "machines"),
        (("machine", "rtx3060"), "machine"),
        (("completion", "bash"), "completion"),
        (("report", "s.json"), "report"),
        (("partition", "g.json"), "partition"),
        (("export", "moccasin", "g.json", "-o", "m.json", "--lossy"), "export"),
        (("import", "moccasin", "moccasin.json"), "profile"),
    ):
        assert fault(plan(*words), "plan-output", part) is None, words


def test_every_command_has_an_object() -> None:
    parts = {each["$ref"].split("/")[-1] for each in SCHEMAS["plan-output"]["oneOf"]}
    named = [SCHEMAS["plan-output"]["$defs"][part]["properties"]["command"] for part in parts - {"error"}]
    assert {name for one in named for name in one.get("enum", [one.get("const")])} == {*COMMANDS}
    assert SCHEMAS["plan-output"]["$defs"]["error"]["properties"]["command"]["enum"] == [*COMMANDS, None]


ERRORS: dict[str, tuple[list[str], str | None, int]] = {
    "no-file": (["solve", "none.json", "--budget", "1GB"], "solve", 2),
    "unknown-command": (["sovle"], None, 2),
    "no-command": ([], None, 2),
    "unknown-option": (["check", "--typo"], "check", 2),
    "no-argument": (["train"], "train", 2),
    "no-value": (["solve", "g.json", "--budget", "nan%"], "solve", 2),
    "unknown-solver": (["solve", "g.json", "--budget", "60%", "--solver", "rotar"], "solve", 2),
}


@pytest.mark.parametrize("name", ERRORS)
@pytest.mark.parametrize("place", ["before", "after", "variable", "table"])
def test_an_error_is_an_object_too(
    name: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    save_graph(chain(6), "g.json")
    words, command, code = ERRORS[name]
    flag = ["--json"]
    if place == "table":
        if command is None:
            pytest.skip("the table is read for a command")
        Path("pyproject.toml").write_text("[tool.memplan]\njson = true\n")
    given = {"before": [*flag, *words], "after": [*words, *flag]}.get(place, words)
    env = {"MEMPLAN_JSON": "1"} if place == "variable" else {}
    result = CliRunner(env=env).invoke(main, given)
    assert result.exit_code == code
    document = json.loads(result.stdout)
    assert (document["command"], document["exit_code"]) == (command, code)
    if words:
        assert result.stderr == f"plan: error: {document['error']}\n"
    assert fault(document, "plan-output") is None


@pytest.mark.scripts
def test_comparisons_and_curves(plan: Callable[..., Any]) -> None:
    save_graph(chain(6), "g.json")
    call = (
        "bench",
        "g.json",
        "--solvers",
        "store-all,rotor",
        "--budgets",
        "100%,90%,5%",
        "--bound-time",
        "1",
    )
    rows = plan(*call, "-o", "rows.csv")
    assert {row["outcome"] for row in rows["rows"]} == {"ok", "infeasible"}
    assert "inf" in {row["lower_bound"] for row in rows["rows"]}
    assert fault(rows, "plan-output", "bench") is None
    compared = plan(*call[:-2], "--bound-time", "0", "--compare", "rows.csv", "--tolerance", "99%")
    assert compared["changes"]
    assert fault(compared, "plan-output", "bench") is None
    assert fault(plan(*call, "--dry-run"), "plan-output", "bench-dry-run") is None
    assert fault(plan(*call, "--dry-run"), "plan-output", "bench") is not None
    curve = plan("pareto", "g.json", "--points", "3", "--solver", "rotor", "--bound-time", "1")
    assert 2 <= len(curve["points"]) <= 3 + 1  # the budgets that were solved, and the peak of the baseline
    assert fault(curve, "plan-output", "pareto") is None
    public = plan(
        "bench", "--corpus", "public", "--filter", "*fcn8*", "--budgets", "100%,90%", *call[2:4], *call[6:]
    )
    assert public["published"]
    assert fault(public, "plan-output", "bench") is None


def test_runs_and_sizes(plan: Callable[..., Any]) -> None:
    Path("m.py").write_text(MODEL)
    plan("profile", "m.py")
    plan("solve", "m.graph.json", "--budget", "100%", "--solver", "store-all")
    ran = plan("run", "m.schedule.json", "--model", "m.py", "--timing-repeats", "1")
    assert fault(ran, "plan-output", "run") is None
    assert fault({**ran, "eager": None, "equal": None, "eager_differs": None}, "plan-output", "run") is None
    quick = ("--time-limit", "1", "--optimizer", "adamw")
    one = plan("size", "m.py", "--gpu", "rtx3060", "--batch", "1,2", *quick)
    assert one["next_steps"]["rows"]
    assert fault(one, "plan-output", "size") is None
    refused = plan("size", "m.py", "--gpu", "rtx3060", "--batch", "1", "--budget", "600B", *quick, code=3)
    assert refused["largest_batch"] is None
    assert fault(refused, "plan-output", "size") is None
    several = plan("size", "m.py", "--gpu", "rtx3060,a100", "--batch", "1", *quick)
    assert fault(several, "plan-output", "size-gpus") is None
    ranks = plan("size", "m.py", "--gpu", "a100", "--ranks", "2", "--link", "nvlink", "--batch", "1", *quick)
    assert fault(ranks, "plan-output", "size-ranks") is None


def mutations(document: Any) -> Iterator[Any]:
    """Yield the document with one field missing, unknown, or of another type, anywhere in its first rows."""

    def places(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
        if isinstance(node, dict):
            yield path
            for key in node:  # pyright: ignore[reportUnknownVariableType]
                if key not in ("source", "solver", "predicted"):
                    yield from places(node[key], (*path, key))
        elif isinstance(node, list):
            for at in range(min(2, len(node))):  # pyright: ignore[reportUnknownArgumentType]
                yield from places(node[at], (*path, at))

    def at(node: Any, path: tuple[Any, ...]) -> Any:
        for key in path:
            node = node[key]
        return node

    for path in places(document):
        for key in [*at(document, path), "unheard_of"]:
            for change in ("remove", -1, [7], {"a": 1}, True):
                made = deepcopy(document)
                row = at(made, path)
                if change == "remove":
                    row.pop(key, None)
                else:
                    row[key] = change
                yield made


READERS: dict[str, Callable[[Any, Any], object]] = {
    "plan-graph": lambda document, _graph: graph_from_document(document, "g"),
    "plan-schedule": lambda document, graph: schedule_from_document(document, graph, "s"),
    "plan-machine": lambda document, _graph: machine_from_document(document),
}


@pytest.mark.parametrize("name", READERS)
def test_what_a_schema_refuses_the_reader_refuses(name: str, plan: Callable[..., Any]) -> None:
    """For documents with one wrong field. The reader refuses more: names, bounds, the graph's structure.

    Readers take an empty value, like null, for a field that may be left out; schemas don't, in most places.
    """
    Path("m.py").write_text(MODEL)
    plan("profile", "m.py", "--gpu", "rtx3060", "--optimizer", "sgd")
    plan("solve", "m.graph.json", "--budget", "80%", "--solver", "joint", "-o", "s.json", *FLUID)
    plan("machine", "rtx3060", "-o", "m.json")
    file = {"plan-graph": "m.graph.json", "plan-schedule": "s.json", "plan-machine": "m.json"}[name]
    document, graph = json.loads(Path(file).read_text()), load_graph("m.graph.json")
    document.pop("gpu", None)  # is read by estimates alone
    assert fault(document, name) is None
    refused = 0
    for made in mutations(document):
        try:
            READERS[name](made, graph)
        except (InputError, ValueError):
            refused += fault(made, name) is not None
            continue
        assert fault(made, name) is None, made
    assert refused > 50
