"""Groups of options in `--help`: each option once, under its heading, and defaults that are the command's."""

from __future__ import annotations

import re

import click
import pytest
from click.testing import CliRunner
from memplan.cli.help import FIRST, GROUPS, PlanCommand, long_name, option_groups
from memplan.cli.main import COMMANDS, main
from memplan.cli.main import GROUPS as COMMAND_GROUPS
from memplan.cli.optimizer_options import OPTIMIZER_KEYS


def command_of(name: str) -> click.Command:
    command = main.get_command(click.Context(main), name)
    assert command is not None
    return command


@pytest.mark.parametrize("name", COMMANDS)
def test_each_option_is_in_one_group(name: str) -> None:
    command = command_of(name)
    assert isinstance(command, PlanCommand)
    ctx = click.Context(command, help_option_names=["-h", "--help"])
    groups = option_groups(command, ctx)
    names = [long_name(one) for members in groups.values() for one in members]
    assert sorted(names) == sorted(set(names))
    assert {*names} == {long_name(one) for one in command.get_params(ctx) if isinstance(one, click.Option)}
    assert 1 <= len(FIRST.get(name, names[:1])) <= 5
    shown = CliRunner().invoke(main, [name, "--help"]).stdout
    assert re.findall(r"^(\w.*):$", shown, re.MULTILINE)[: len(groups)] == [*groups]


def test_names_in_the_tables_are_options() -> None:
    options = {long_name(one) for name in COMMANDS for one in command_of(name).params} | {"help"}
    listed = [name for names in GROUPS.values() for name in names]
    assert len(listed) == len(set(listed))
    assert {*listed} <= options
    for name, first in FIRST.items():
        assert {*first} <= {long_name(one) for one in command_of(name).params}


def test_all_options_of_optimizers_are_in_their_group() -> None:
    given = {long_name(one) for one in command_of("profile").params if one.name in OPTIMIZER_KEYS}
    assert given == {*GROUPS["Optimizer"]}


def test_commands_are_in_groups() -> None:
    assert [name for members in COMMAND_GROUPS.values() for name in members] == [*COMMANDS]
    shown = CliRunner().invoke(main, ["--help"]).stdout
    for heading, members in COMMAND_GROUPS.items():
        assert re.search(rf"^{heading}:\n  {next(iter(members))} ", shown, re.MULTILINE)


@pytest.mark.parametrize(
    ("name", "option", "default"),
    [
        ("optimize", "budget", "the capacity of --gpu or --machine"),
        ("optimize", "machine", "that of --gpu"),
        ("solve", "budget", "the device's capacity"),
        ("solve", "machine", "that of the graph"),
        ("check", "budget", "that of the schedule"),
        ("check", "machine", "that of the schedule"),
        ("size", "host", "64GB"),
        ("profile", "host", "memory without limit"),
    ],
)
def test_a_default_is_the_command_s_own(name: str, option: str, default: str) -> None:
    found = next(one for one in command_of(name).params if long_name(one) == option)
    assert f"[default: {default}]" in str(getattr(found, "help", ""))
