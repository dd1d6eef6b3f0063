"""A schedule's graph is found by its sha256; files of another kind are refused by what they are."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from command_line import solved, write_files
from memplan.cli.main import main
from memplan.graphs.files.files import load_graph, save_graph
from memplan.graphs.generators import chain

Plan = Callable[..., Result]


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    """Run `plan` in a folder with the files of command_line.py and a schedule."""
    monkeypatch.chdir(tmp_path)
    write_files()
    solved()
    return lambda *arguments: CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.mark.parametrize("name", ["chain.json", "elsewhere.yaml", "z.json.gz"])
def test_the_graph_beside_the_schedule_is_found_whatever_its_name(plan: Plan, name: str) -> None:
    wanted = plan("check", "s.json", "--graph", "chain.json", "--json").stdout
    if name != "chain.json":
        save_graph(load_graph("chain.json"), name)
        Path("chain.json").unlink()
    for seed in range(3):  # of the same name, with other operations
        save_graph(chain(8, seed=seed + 1), f"a{seed}.json")
    Path("broken.json").write_text('{"format": "plan-graph/1", "name": "chain-8-seed0"')
    found = plan("check", "s.json", "--json")
    assert found.exit_code == 0, found.stderr
    assert found.stdout == wanted
    assert found.stderr == f"plan: graph: {name}\n"
    assert plan("check", "s.json", "-q").stderr == ""


def test_every_command_with_a_schedule_finds_its_graph(plan: Plan) -> None:
    for words in (("show", "s.json"), ("check", "s.json"), ("report", "s.json", "-o", "r.html")):
        shown = plan(*words)
        assert shown.exit_code == 0, shown.stderr
        assert "plan: graph: chain.json" in shown.stderr


def test_the_graph_may_be_in_either_folder(plan: Plan) -> None:
    Path("sub").mkdir()
    shutil.move("s.json", "sub/s.json")
    assert "graph: chain.json" in plan("check", "sub/s.json").stderr
    shutil.move("chain.json", "sub/g.json")
    assert "graph: sub/g.json" in plan("check", "sub/s.json").stderr


def test_the_bytes_of_the_file_identify_a_graph_too(plan: Plan) -> None:
    import hashlib

    document = json.loads(Path("s.json").read_text())
    document["graph"]["sha256"] = hashlib.sha256(Path("chain.json").read_bytes()).hexdigest()
    Path("s.json").write_text(json.dumps(document))
    assert plan("check", "s.json").exit_code == 0


def test_a_graph_that_is_not_there_is_asked_for(plan: Plan) -> None:
    Path("chain.json").unlink()
    result = plan("show", "s.json")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "and no file in its folder or the working folder has it: give --graph FILE" in result.stderr


def test_a_folder_that_cannot_be_listed_is_no_fault(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("closed").mkdir()
    shutil.move("s.json", "closed/s.json")
    listed = Path.iterdir

    def refused(folder: Path) -> Iterator[Path]:
        if folder.name == "closed":
            raise PermissionError(13, "Permission denied")
        return listed(folder)

    monkeypatch.setattr(Path, "iterdir", refused)
    assert "graph: chain.json" in plan("check", "closed/s.json").stderr
    Path("chain.json").unlink()
    assert "give --graph FILE" in plan("check", "closed/s.json").stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("solve", "model.py", "--budget", "60%"), "make a graph of it first (plan profile model.py"),
        (("solve", "s.json", "--budget", "60%"), "it is a schedule: its graph is expected here"),
        (("solve", "config.json", "--budget", "60%"), "it is a configuration of Hugging Face"),
        (("solve", "m.yaml", "--budget", "60%"), "it is a machine: --machine takes it"),
        (("solve", "printed.json", "--budget", "60%"), "it is output of --json"),
        (("solve", "graph.toml", "--budget", "60%"), "graph.toml: the suffix must be .json, .yaml or .yml"),
        (("solve", "none.py", "--budget", "60%"), "none.py: no such file"),
        (("show", "chain.json", "--graph", "s.json"), "it is a graph: `plan solve` makes a schedule of it"),
        (("show", "chain.json"), "it is a graph: `plan solve` makes a schedule of it"),
        (("bench", "nowhere/"), "nowhere: no such file or folder"),
        (("instances", "--corpus", "nope"), "unknown corpus 'nope': it must be one of "),
        (("instances", "--corpus", "publik"), "unknown corpus 'publik': did you mean public"),
        (("instances", "qqq"), "unknown instance 'qqq': plan instances lists them"),
    ],
)
def test_a_file_of_another_kind_is_refused_by_what_it_is(
    plan: Plan, words: tuple[str, ...], said: str
) -> None:
    Path("model.py").write_text("")
    Path("graph.toml").write_text("")
    Path("config.json").write_text('{"model_type": "gpt2", "n_layer": 1}')
    Path("m.yaml").write_text("device: {capacity: 12GB}\n")
    Path("printed.json").write_text(plan("check", "s.json", "--json").stdout)
    result = plan(*words)
    assert result.exit_code == 2
    assert said in result.stderr
    assert len(result.stderr.splitlines()) == 1
