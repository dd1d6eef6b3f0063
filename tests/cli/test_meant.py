"""What an unknown option may mean."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner
from memplan.cli.main import COMMANDS, main
from memplan.cli.meant import meant


@pytest.mark.parametrize(
    ("command", "unknown", "expected"),
    [
        ("size", "--length", ["--lengths"]),
        ("size", "--batch-size", ["--batch"]),
        ("size", "--gpus", ["--gpu"]),
        ("size", "--bf16", ["--autocast bf16"]),
        ("size", "--memory", ["--host", "--budget"]),
        ("size", "--model", []),
        ("solve", "--solvers", ["--solver"]),
        ("solve", "--buget", ["--budget"]),
        ("solve", "--limit", ["--time-limit"]),
    ],
)
def test_an_unknown_option_is_compared_by_letters_help_and_choices(
    command: str, unknown: str, expected: list[str]
) -> None:
    found = main.get_command(click.Context(main), command)
    assert found
    assert meant(unknown, [one for one in found.params if isinstance(one, click.Option)]) == expected


@pytest.mark.parametrize("command", COMMANDS)
def test_each_options_name_is_found_without_its_last_letter(command: str) -> None:
    found = main.get_command(click.Context(main), command)
    assert found
    options = [one for one in found.params if isinstance(one, click.Option) and not one.hidden]
    for name in (max(one.opts, key=len) for one in options):
        if len(name) > len("--set"):
            assert name in meant(name[:-1], options)


def test_the_line_names_the_option() -> None:
    result = CliRunner().invoke(main, ["size", "config.json", "--length", "2048"])
    assert result.exit_code == 2
    assert "No such option '--length'. Did you mean --lengths?" in result.output
