"""A typo in any argument of any command: one line, exit code 2, before any work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result
from memplan.cli.main import COMMANDS, main
from memplan.graphs.files.files import load_graph, save_graph
from memplan.graphs.generators import chain
from memplan.planner.baseline import baseline_schedule
from memplan.planner.schedule.file import save_schedule

Plan = Callable[[list[str]], Result]

SOUND = {
    "optimize": ["m.py", "--budget", "60%"],
    "profile": ["m.py"],
    "solve": ["g.json", "--budget", "100%", "--solver", "store-all"],
    "check": ["s.json", "--graph", "g.json"],
    "verify": ["s.json", "--certificate", "c.json", "--graph", "g.json"],
    "explain": ["snapshot.pickle"],
    "show": ["s.json", "--graph", "g.json"],
    "report": ["s.json", "--graph", "g.json", "-o", "r.html"],
    "run": ["s.json", "--graph", "g.json", "--model", "m.py"],
    "train": ["s.json", "--graph", "g.json", "--model", "m.py", "--steps", "1", "--checkpoint", "c"],
    "compare": ["g.json", "--solvers", "store-all", "--budget", "100%", "--bound-time", "0"],
    "pareto": ["g.json", "--solver", "store-all", "--budgets", "100%"],
    "bench": ["g.json", "--solvers", "store-all", "--budgets", "100%"],
    "machine": ["rtx3060"],
    "size": ["m.py", "--gpu", "rtx3060"],
    "partition": ["g.json"],
    "solvers": [],
    "completion": ["bash"],
    "env": [],
    "instances": ["unet-4"],
    "import": ["moccasin", "m.json"],
    "export": ["moccasin", "g.json", "-o", "m.json"],
    "shard": ["g.json", "--ranks", "2", "-o", "d.json"],
}
"""Of each command what it needs at least. The model's file can't be read: nothing is traced."""

WRONG = ["typo", "-", "nan%", "x" * 400]
SOUND_AFTER_ALL = {("--filter", "-"), ("--output", "-"), *(("--plots", each) for each in WRONG[:3])}
"""A row's name has a dash; a file may be standard output; a folder that is not there is made."""


def cases() -> Iterator[tuple[str, list[str]]]:
    for name in COMMANDS:
        command, sound = main.get_command(click.Context(main), name), SOUND[name]
        assert command
        for one in command.params:
            option = max(one.opts, key=len)
            if isinstance(one, click.Argument):
                yield from ((name, [wrong, *sound[1:]]) for wrong in WRONG)
            elif one.opts == ["--help"]:
                continue
            else:
                yield name, [*sound, f"{option[:-1]}ö", "1"]
                if isinstance(one, click.Option) and not (one.is_flag or one.count):
                    yield name, [*sound, option]
                    wrong = [each for each in WRONG if (option, each) not in SOUND_AFTER_ALL]
                    yield from ((name, [*sound, option, *[each] * one.nargs]) for each in wrong)
        yield name, [*sound, "--typo"]
        yield name, [*sound, "one", "two"]
    yield "sovle", ["g.json"]


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plan]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("typos"))
        save_graph(chain(4), "g.json")
        save_schedule("s.json", graph := load_graph("g.json"), baseline_schedule(graph))
        Path("m.py").write_text("typo typo\n")
        yield lambda words: CliRunner().invoke(main, words)


NUMBERS = ["", "1.5", "9" * 25, "9" * 400, "-1", "100000"]
COUNTED = {"checkmate": "threads", "auto": "workers", "hiremate": "workers", "h-ilp": "workers"}


@pytest.mark.parametrize("solver", COUNTED)
def test_a_setting_beyond_reason_is_refused(solver: str, plan: Plan) -> None:
    for number in NUMBERS:
        setting = f"{COUNTED[solver]}={number}"
        result = plan(["solve", "g.json", "--budget", "80%", "--solver", solver, "--set", setting])
        assert (result.exit_code, len(result.stderr.splitlines())) == (2, 1), (setting, result.stderr)


@pytest.mark.sampled(9)
@pytest.mark.parametrize("name", [*COMMANDS, "sovle"])
def test_a_typo_is_one_line_before_any_work(name: str, plan: Plan) -> None:
    before = set(Path().iterdir())
    for _name, words in (case for case in cases() if case[0] == name):
        result = plan([name, *words])
        assert (result.exit_code, result.stdout) == (2, ""), (words, result.stderr)
        assert result.stderr.startswith("plan: error: "), words
        assert len(result.stderr.splitlines()) == 1, words
        assert len(result.stderr) < 2000, words
    assert set(Path().iterdir()) == before
