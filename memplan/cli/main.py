"""The command `plan`: its subcommands, each imported only when it is called, and how errors end it."""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from keyword import iskeyword
from pathlib import Path
from typing import Any

import click
from memplan.version import __version__

from ..graphs.folders.scratch import sweep
from .exits import Exit, verdict
from .option_sources import PREFIX, table_defaults, unknown_variables, with_variables
from .options import answer_of, output_flags
from .printing.output import Answer
from .signals import interruptible, leave
from .streams import give_up_output, say

GROUPS = {
    "Plan and train": {
        "optimize": "Plan a model within a memory budget: profile, solve and report in one.",
        "profile": "Trace a PyTorch model and measure its operations: makes a graph.",
        "solve": "Find a fast schedule of a graph within a memory budget.",
        "run": "Run a schedule and eager PyTorch: time, memory, results.",
        "train": "Train a model by a schedule, with checkpoints.",
    },
    "Will it fit": {
        "size": "Will it fit a GPU? The batch to train with, the largest, what takes the memory.",
        "explain": "Say who owns the memory's peak in a snapshot or a profile of PyTorch.",
        "machine": "Measure this machine, or show one by its name: makes a machine file.",
    },
    "Look at schedules": {
        "show": "Show a schedule: its figures, what it recomputes, its memory curve.",
        "report": "Write a schedule as one page for a browser.",
        "check": "Replay a schedule by the rules and report its figures.",
        "verify": "Prove what is claimed for a schedule: rules, peak, time, lower bounds.",
        "compare": "Show schedules side by side, or what several solvers find for a graph.",
    },
    "Compare solvers": {
        "pareto": "Find the curve of time against memory of a graph.",
        "bench": "Compare solvers on graphs and budgets.",
        "solvers": "List the solvers.",
        "instances": "List the graphs that come with memplan, or write one.",
        "partition": "Show the clusters a graph is cut into.",
    },
    "Files of other tools, sharding": {
        "import": "Make a graph of a file that another tool has written.",
        "export": "Write a graph as a file for another tool.",
        "shard": "Write a graph as one rank of sharded training runs it.",
    },
    "This command": {
        "completion": "Print the script by which a shell completes commands, options and names.",
        "env": "Show versions and this machine, for bug reports.",
    },
}
"""Heading -> commands with what they do."""

COMMANDS = {name: words for members in GROUPS.values() for name, words in members.items()}


@cache
def command_of(name: str) -> click.Command:
    """Import a command and return it, with its variables."""
    attribute = f"{name}_" if iskeyword(name) else name
    return with_variables(getattr(import_module(f".{attribute}", __package__), attribute))


def all_commands() -> dict[str, click.Command]:
    """Import all commands and return them by name."""
    return {name: command_of(name) for name in COMMANDS}


class Plan(click.Group):
    """The group of subcommands.

    Subcommand `name` is the object `name` in the module `.name`, both with a `_` appended to a Python
    keyword.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        return command_of(cmd_name) if cmd_name in COMMANDS else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Suggest similar names for an unknown command; read the table in pyproject.toml for a known one."""
        name = args[0] if args else ""
        if name not in COMMANDS and not name.startswith("-") and (close := get_close_matches(name, COMMANDS)):
            ctx.fail(f"No such command {name!r}. Did you mean {' or '.join(close)}?")
        found, command, rest = super().resolve_command(ctx, args)
        if found and command and not ctx.resilient_parsing and not {"-h", "--help"} & {*rest}:
            answer = answer_of(ctx)
            answer.command = found
            table = table_defaults(Path.cwd(), found, command, all_commands)
            answer.wanted |= str(table.get("as_json")).lower() in _YES
            ctx.default_map = {found: table}
            quiet = ctx.params.get("quiet") or {"-q", "--quiet"} & {*rest}
            for line in () if quiet else unknown_variables(command, all_commands):
                say(line)
            if quiet:
                warnings.filterwarnings("ignore", category=UserWarning, module=f"{_OF_NO_LINE}$")
        return found, command, rest

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        del ctx
        width = max(map(len, COMMANDS))
        for heading, members in GROUPS.items():
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(width), words) for name, words in members.items()])

    def main(self, args: Sequence[str] | None = None, *rest: Any, **options: Any) -> Any:
        """Run, and exit with a code of `Exit`; an error is one line on standard error."""
        debug = "--debug" in (sys.argv[1:] if args is None else args)
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):  # names in files may hold what a terminal's encoding lacks
                stream.reconfigure(errors="backslashreplace")  # pyright: ignore
        # What transformers remarks on a config would come before each result, once per process that traces.
        os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
        warnings.formatwarning = _one_line
        sweep()
        output = sys.stdout
        answer = Answer(wanted=_json_wanted(sys.argv[1:] if args is None else args))
        options = {"prog_name": "plan", "obj": answer, **options, "standalone_mode": False}
        with interruptible() as interruption:
            try:
                code = super().main(args, *rest, **options)
                interruption.over()
            except SystemExit as leaving:
                gone = (
                    sys.stdout is not output
                )  # click replaces it when the reader of the help has closed the pipe
                code = Exit.DONE if gone else leaving.code
            except click.exceptions.NoArgsIsHelpError as error:
                click.echo(error.format_message(), err=True)
                code = Exit.USAGE
                answer.end(code, "a command is missing")
            except (Exception, KeyboardInterrupt) as error:
                interruption.over()
                if debug:
                    traceback.print_exception(error)
                code, line = verdict(error, interruption.signal is not None)
                label = "" if code == Exit.INTERRUPTED else "error: "
                say(f"{label}{line}")
                if isinstance(error, OSError):
                    give_up_output()
                answer.end(interruption.exit_code if code == Exit.INTERRUPTED else code, line)
            interruption.over()
            code = interruption.exit_code if code == Exit.INTERRUPTED else code or Exit.DONE
            if args is None and isinstance(code, int):  # run as a command, not called from Python
                leave(code)
            sys.exit(code)


_YES = ("1", "true", "t", "yes", "y", "on")
"""Values of a flag's variable that set it, as click reads them."""


def _json_wanted(words: Sequence[str]) -> bool:
    """Tell whether an error in the command line itself is to be printed as JSON too."""
    return "--json" in words or os.environ.get(f"{PREFIX}JSON", "").lower() in _YES


_OF_NO_LINE = "memplan"
"""The file that warnings name that are of no line of code."""
_formatted = warnings.formatwarning


def _one_line(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """Return the text of a warning; of one of memplan's own a line like the command's others."""
    if filename == _OF_NO_LINE:
        return f"plan: warning: {message}\n"
    return _formatted(message, category, filename, lineno, line)


@click.command(cls=Plan, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="plan")
@output_flags
def main(**flags: bool) -> None:
    """Train a PyTorch model within a memory budget, with the smallest possible slowdown.

    \b
        plan optimize model.py --budget 12GB
        plan run model.schedule.json --model model.py

    \b
    Step by step:
        plan profile model.py
        plan solve model.graph.json --budget 12GB
        plan report model.schedule.json

    Options may also be MEMPLAN_* variables, like MEMPLAN_TIME_LIMIT=5m, or keys of [tool.memplan] in
    pyproject.toml.
    """
    del flags  # each command asks for them
