"""Options from other places than the command line: `MEMPLAN_*` variables, and `[tool.memplan]` of the
nearest pyproject.toml.

The command line comes first, then the environment, then the table, then the default. An option has one
variable in all commands, named after its long name: `--time-limit` is MEMPLAN_TIME_LIMIT. Keys of the table
are long names too; a table `[tool.memplan.solve]` holds options of one command.

A folder of other people's files may have a pyproject.toml. So its table names no file that is read, written
or executed, a machine apart.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from functools import wraps
from pathlib import Path
from typing import Any, cast

import click
from click.core import ParameterSource

from ..graphs.errors import InputError, MemplanError
from .help import NOT_VARIABLES, long_name

PREFIX = "MEMPLAN_"

ORIGINS = "options that are not of the command line: "
"""Beginning of a note on an error that names them."""

_TABLE = "[tool.memplan]"
_COMMAND_LINE_ONLY = {*NOT_VARIABLES, "version"}
"""Options that are for one call: a file to write is another one for each command."""
_NEVER_IN_TABLE = {"model", "disk", "html", "plots"}
"""Options that name a file or folder without saying so by their type, or that execute one."""
_MACHINE = "machine"
"""The one option in a table that may be a file, below the folder of the pyproject.toml."""

Commands = Callable[[], Mapping[str, click.Command]]
"""Returns all commands by name. It imports them, so it is called only if a name is not of the command."""


def with_variables(command: click.Command) -> click.Command:
    """Give each option of a command its variable, and name options from elsewhere in the command's errors."""
    for option in _options(command):
        if (name := long_name(option)) not in _COMMAND_LINE_ONLY:
            option.envvar = _variable(name)
    run = command.callback
    assert run is not None

    @wraps(run)
    def named(*args: Any, **options: Any) -> None:
        try:
            run(*args, **options)
        except (MemplanError, click.UsageError) as error:
            if used := _used(click.get_current_context()):
                error.add_note(f"{ORIGINS}{', '.join(used)}")
            raise

    command.callback = named
    return command


def origin(ctx: click.Context | None, param: click.Parameter | None) -> str | None:
    """Return the variable or the key that a parameter's value is of; None for the command line."""
    if ctx is None or param is None:
        return None
    source = ctx.get_parameter_source(param.name)
    if source is ParameterSource.ENVIRONMENT:
        return str(param.envvar)
    if source is ParameterSource.DEFAULT_MAP:
        return f"{long_name(param)} of {_TABLE} in pyproject.toml"
    return None


def unknown_variables(command: click.Command, commands: Commands) -> list[str]:
    """Return a line for each MEMPLAN_ variable that no command has, but which is close to one of this one."""
    own = [_variable(name) for name in _names(command)]
    lines = list[str]()
    for name in sorted(os.environ):
        close = get_close_matches(name, own, n=1, cutoff=0.85) if name.startswith(PREFIX) else []
        if (
            close
            and name not in own
            and not any(name in map(_variable, _names(c)) for c in commands().values())
        ):
            lines.append(f"the variable {name} is not known, it is ignored: did you mean {close[0]}?")
    return lines


def table_defaults(folder: Path, name: str, command: click.Command, commands: Commands) -> dict[str, Any]:
    """Return what the nearest table says of a command's options, by their names in Python.

    folder: where the search begins; it goes up to the first pyproject.toml that has a table.

    Raises InputError: no TOML, a key that no command has, a key that a table may not have, no value.
    """
    path, table = _nearest(folder)
    if path is None:
        return {}
    own = cast("object", table.get(name, {}))
    if not isinstance(own, dict):
        raise InputError(f"{path}: {name} in {_TABLE} must be a table, [tool.memplan.{name}]")
    common = {key: value for key, value in table.items() if not isinstance(value, dict)}
    tables = [key for key, value in table.items() if isinstance(value, dict)]
    of_command = {long_name(option): option for option in _options(command)}
    known = lambda: {each for one in commands().values() for each in _names(one)}  # noqa: E731
    _check(path, tables, {name}, lambda: set(commands()))
    _check(path, common, of_command, known)
    _check(path, cast("dict[str, Any]", own), of_command, set[str])
    given = {**common, **cast("dict[str, Any]", own)}
    return {
        str(option.name): _value(path, key, value, option)
        for key, value in given.items()
        if (option := of_command.get(_spelled(key))) is not None
    }


def _options(command: click.Command) -> Iterable[click.Option]:
    return (one for one in command.params if isinstance(one, click.Option))


def _names(command: click.Command) -> list[str]:
    return [name for one in _options(command) if (name := long_name(one)) not in _COMMAND_LINE_ONLY]


def _variable(name: str) -> str:
    return PREFIX + name.upper().replace("-", "_")


def _spelled(key: str) -> str:
    return key.replace("_", "-")


def _used(ctx: click.Context) -> list[str]:
    found = [name for param in ctx.command.params if (name := origin(ctx, param)) is not None]
    return sorted(set(found))


def _nearest(folder: Path) -> tuple[Path | None, dict[str, Any]]:
    """Return the first pyproject.toml with a table, from the folder upwards, and the table."""
    for place in (folder, *folder.parents):
        path = place / "pyproject.toml"
        try:
            document = tomllib.loads(path.read_text("utf-8")) if path.is_file() else {}
        except (OSError, ValueError) as error:
            said = error.strerror if isinstance(error, OSError) else error
            raise InputError(f"{path}: cannot be read: {said}") from None
        tool = document.get("tool", {})
        if isinstance(tool, dict) and "memplan" in tool:
            table = cast("dict[str, Any]", tool)["memplan"]
            if not isinstance(table, dict):
                raise InputError(f"{path}: tool.memplan must be a table, {_TABLE}")
            return path, cast("dict[str, Any]", table)
    return None, {}


def _check(
    path: Path, keys: Iterable[str], of_command: Iterable[str], others: Callable[[], set[str]]
) -> None:
    """Refuse a key that no command has, or that a table may not have. others: called if it is needed."""
    known = set(of_command)
    for key in keys:
        name = _spelled(key)
        if name in _COMMAND_LINE_ONLY:
            raise InputError(f"{path}: {key} in {_TABLE}: --{name} is for the command line alone")
        if name in known or name in (known := known | others()):
            continue
        close = get_close_matches(name, known - _COMMAND_LINE_ONLY)
        hint = f": did you mean {' or '.join(close)}?" if close else ": keys are options like time-limit"
        raise InputError(f"{path}: unknown key {key!r} in {_TABLE}{hint}")


def _value(path: Path, key: str, value: object, option: click.Option) -> object:
    """Return a value of the table as click takes it: text, a list of texts, true or false."""
    name = long_name(option)
    if name in _NEVER_IN_TABLE or (isinstance(option.type, click.Path) and name != _MACHINE):
        raise InputError(
            f"{path}: {key} in {_TABLE}: files are named on the command line or by {option.envvar}"
        )
    if isinstance(value, dict):
        raise InputError(f"{path}: {key} in {_TABLE} must be a value, not a table")
    if isinstance(value, list):
        texts = [str(each) for each in cast("list[object]", value)]
        # budgets = ["75%", "50%"] is --budgets 75%,50%
        return texts if option.multiple or option.nargs > 1 else ",".join(texts)
    if isinstance(value, bool):
        return value
    if option.multiple:
        return [str(value)]
    if name == _MACHINE and (path.parent / str(value)).is_file():
        return str(path.parent / str(value))
    return str(value)
