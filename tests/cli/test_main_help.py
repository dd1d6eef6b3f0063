"""`--help` of every command: it has an example, and the example is one. What a shell completes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from memplan.cli.main import COMMANDS, main
from memplan.exchange.formats import FORMATS


def examples(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines() if line.startswith("  plan ")]


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_an_example(name: str) -> None:
    shown = CliRunner().invoke(main, [name, "--help"], terminal_width=100)
    assert shown.exit_code == 0
    found = examples(shown.stdout)
    assert any(words[1] == name for words in found)
    for _plan, other, *words in found:
        command = main.get_command(click.Context(main), other)
        assert command is not None
        known = {option for one in command.params for option in one.opts}
        assert {word for word in words if word.startswith("-")} <= known, words


@pytest.mark.parametrize("name", ["", *COMMANDS])
@pytest.mark.parametrize("columns", [60, 100, 200])
def test_help_fits_100_columns(name: str, columns: int) -> None:
    shown = CliRunner(env={"COLUMNS": str(columns)}).invoke(main, [*name.split(), "--help"])
    assert shown.exit_code == 0
    assert max(map(len, shown.stdout.splitlines())) <= 100


HEADLESS = ("A ", "As ", "At ", "Be", "By ", "For ", "How ", "In ", "Of ", "The ", "These", "Those", "To ")
HEADLESS += ("What ", "When ", "Where ", "Which ", "With ")


@pytest.mark.parametrize("name", COMMANDS)
def test_each_option_has_a_subject_and_a_default(name: str) -> None:
    command = main.get_command(click.Context(main), name)
    assert command is not None
    for one in command.params:
        if not isinstance(one, click.Option) or one.name == "help":
            continue
        said = one.help or ""
        assert said[:1].isupper(), one.opts
        assert not said.startswith(HEADLESS), (one.opts, said)
        shown = one.get_help_record(click.Context(command))
        assert shown is not None
        # an option has a default, a way to repeat it, or must be given
        told = ("[default: ", "required]", "be given several times", "; default: ")
        assert one.is_flag or one.count or any(word in shown[1] for word in told), (one.opts, shown)


def test_a_command_with_a_typo_is_told_with_those_like_it() -> None:
    result = CliRunner().invoke(main, ["sise", "model.py"])
    assert result.exit_code == 2
    assert "No such command 'sise'. Did you mean size?" in result.stderr
    assert "Did you mean" not in CliRunner().invoke(main, ["xyzzy"]).stderr


def test_import_and_export_tell_their_formats() -> None:
    for command, names in (
        ("import", [n for n, one in FORMATS.items() if one.reads]),
        ("export", [n for n, one in FORMATS.items() if one.writes]),
    ):
        shown = CliRunner().invoke(main, [command, "--help"]).stdout.partition("Formats:")[2]
        assert [line.split()[0] for line in shown.strip().splitlines()] == names


def test_the_first_help_has_the_way_through() -> None:
    shown = CliRunner().invoke(main, ["--help"]).stdout.replace("      ", "  ")
    assert [words[1] for words in examples(shown)] == ["optimize", "run", "profile", "solve", "report"]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("plan so", {"solve", "solvers"}),
        ("plan solve --so", {"--solver"}),
        ("plan solve --solver rk-", {"rk-rotor", "rk-checkmate"}),
        ("plan size model.py --gpu rtx30", {"rtx3060", "rtx3090"}),
        ("plan bench --corpus pub", {"public"}),
        ("plan import mo", {"moccasin"}),
        ("plan profile model.py --optimizer ad", {"adam", "adamw"}),
    ],
)
def test_a_shell_completes(line: str, wanted: set[str], tmp_path: Path) -> None:
    words = line.split()
    asked = {"_PLAN_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    program = "import sys; sys.argv[0] = 'plan'; from memplan.cli.main import main; main()"
    reported = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **asked},
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert {line.split(",", 1)[1] for line in reported.stdout.splitlines()} >= wanted


@pytest.mark.parametrize("name", ["plan", "memplan"])
def test_the_script_for_bash_completes(name: str, tmp_path: Path) -> None:
    """Bash with the script, asked for the words after a line as at the press of Tab."""
    script = CliRunner().invoke(main, ["completion", "Bash"])
    assert script.exit_code == 0, script.stderr
    asking = (
        f"{script.stdout}\nCOMP_WORDS=({name} so) COMP_CWORD=1\n"
        f"complete -p {name}\n_{name}_completion {name}\nprintf '%s\\n' \"${{COMPREPLY[@]}}\""
    )
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", asking], env={**os.environ, "PATH": path}, capture_output=True, text=True, cwd=tmp_path
    )
    assert done.stdout.splitlines() == [
        f"complete -o nosort -F _{name}_completion {name}",
        "solve",
        "solvers",
    ], done.stderr


def test_scripts_for_other_shells() -> None:
    zsh = CliRunner().invoke(main, ["completion", "zsh"]).stdout
    assert "#compdef plan" in zsh
    assert "#compdef memplan" in zsh
    shown = CliRunner().invoke(main, ["completion", "fish", "--json"])
    document = json.loads(shown.stdout)
    assert document["shell"] == "fish"
    assert "complete --no-files --command memplan" in document["script"]
    refused = CliRunner().invoke(main, ["completion", "tcsh"])
    assert refused.exit_code == 2
    assert "'tcsh' is not one of 'bash', 'zsh', 'fish'" in refused.stderr
