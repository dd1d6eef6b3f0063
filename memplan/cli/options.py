"""Options that several commands share."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable
from fractions import Fraction
from functools import wraps
from math import inf
from pathlib import Path
from typing import Any

import click

from ..graphs.errors import InputError
from ..graphs.files.documents import document_suffix
from ..graphs.machine import Machine
from ..graphs.machines.presets import find_machine
from ..planner.budget import Budget, parse_budget, parse_reserve, spelled
from ..solvers.allowed import TECHNIQUES, parse_allow
from ..solvers.problem import Technique
from ..solvers.registry.catalogue import DEFAULT_SOLVER
from .known_names import completing, machines_here, solvers
from .parameter_types import SECONDS, TIME_METAVAR
from .printing.log import logged
from .printing.output import Answer, Output
from .printing.output_files import STDOUT, check_writable

FILE = click.Path(path_type=Path)


def writable(ctx: click.Context, param: click.Parameter, path: Path | None) -> Path | None:
    """Validate an output file before the work is done; a callback for click."""
    return _writable(ctx, param, path, document_suffix)


def writable_as(
    *suffixes: str, packed: bool = False
) -> Callable[[click.Context, click.Parameter, Path | None], Path | None]:
    """Return a callback that validates an output file with one of these suffixes.

    packed: whether .gz may follow the suffix.
    """

    def check(path: Path) -> None:
        suffix = Path(path.stem).suffix if packed and path.suffix == ".gz" else path.suffix
        if suffix not in suffixes:
            raise InputError(f"{path}: the suffix must be {' or '.join(suffixes)}")

    return lambda ctx, param, path: _writable(ctx, param, path, check)


def table_argument(ctx: click.Context, param: click.Parameter, path: Path | None) -> Path | None:
    """Validate a table's file before the work is done; a callback for click."""
    if path is None:
        return None
    if path.suffix != ".csv":
        raise click.BadParameter(f"{path}: the suffix must be .csv", ctx, param)
    if path.exists() and not path.is_file():
        raise click.BadParameter(f"{path}: cannot be written: it is no regular file", ctx, param)
    return path


def writable_export(ctx: click.Context, param: click.Parameter, path: Path | None) -> Path | None:
    """Validate an output file with any suffix: that is checked by its format; a callback for click."""
    return _writable(ctx, param, path, lambda _path: None)


def _writable(
    ctx: click.Context, param: click.Parameter, path: Path | None, check: Callable[[Path], object]
) -> Path | None:
    try:
        if path is not None:
            check(path)
            check_writable(path)
        return path
    except InputError as error:
        raise click.BadParameter(str(error), ctx, param) from None


def folder_argument(ctx: click.Context, param: click.Parameter, folder: Path | None) -> Path | None:
    """Validate a folder for output, which is made when the first file is written; a callback for click."""
    if folder is not None:
        there = next((place for place in (folder, *folder.parents) if place.exists()), Path())
        try:
            with tempfile.TemporaryFile(dir=there):
                pass
        except OSError as error:
            raise click.BadParameter(f"{folder}: cannot be made: {error.strerror}", ctx, param) from None
    return folder


NOTES = "memplan.notes"
"""Key of a command's notes about its arguments in click's `meta`: they are printed when it begins."""


def budget_argument(ctx: click.Context, param: click.Parameter, text: str | None) -> Budget | None:
    """Parse a budget; a callback for click."""
    try:
        if text is None:
            return None
        budget = parse_budget(text)
        if budget.size is not None and re.search(r"[KMGTP]i?b\s*$", text):  # as bits are written
            ctx.meta.setdefault(NOTES, []).append(
                f"{text.strip()} is taken for bytes: {spelled(budget.size)}"
            )
        return budget
    except InputError as error:
        raise click.BadParameter(str(error), ctx, param) from None


ANY = Budget("any", percent=Fraction(100))
"""A budget that stands for all there may be."""


def pieces_argument(ctx: click.Context, param: click.Parameter, text: str | None) -> Budget | None:
    """Parse a budget, or `any`; a callback for click."""
    return ANY if text == ANY.text else budget_argument(ctx, param, text)


def reserve_argument(ctx: click.Context, param: click.Parameter, text: str | None) -> Budget | None:
    """Parse --reserve; a callback for click."""
    try:
        return None if text is None else parse_reserve(text)
    except InputError as error:
        raise click.BadParameter(str(error), ctx, param) from None


def allow_argument(
    ctx: click.Context, param: click.Parameter, text: str | None
) -> tuple[Technique, ...] | None:
    """Parse --allow; a callback for click."""
    try:
        return parse_allow(text)
    except InputError as error:
        raise click.BadParameter(str(error), ctx, param) from None


def with_gap(settings: dict[str, str], gap: str | None, prefix: str = "") -> dict[str, str]:
    """Return a solver's settings with --gap among them. prefix: of its names in --set.

    Raises InputError if both are given.
    """
    if gap is None:
        return settings
    if "gap" in settings:
        raise InputError(f"--gap and --set {prefix}gap= say the same: give one")
    return {**settings, "gap": gap}


def settings_argument(ctx: click.Context, param: click.Parameter, texts: tuple[str, ...]) -> dict[str, str]:
    """Parse --set, 'key=value' texts, to a mapping; a callback for click."""
    settings: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not (equals and key.strip()):
            raise click.BadParameter(f"{text!r} is not of the form key=value", ctx, param)
        if key.strip() in settings:
            raise click.BadParameter(f"{key.strip()!r} is given twice", ctx, param)
        settings[key.strip()] = value
    return settings


def seconds_argument(ctx: click.Context, param: click.Parameter, seconds: float | None) -> float | None:
    """Validate --time-limit; a callback for click."""
    if seconds is not None and not (0 < seconds < inf):
        raise click.BadParameter(f"the time must be above 0 seconds and finite, not {seconds:g}", ctx, param)
    return seconds


def allowance_argument(ctx: click.Context, param: click.Parameter, seconds: float) -> float:
    """Validate --bound-time; a callback for click."""
    if not (0 <= seconds < inf):
        text = f"the time must be 0 seconds or more and finite, not {seconds:g}"
        raise click.BadParameter(text, ctx, param)
    return seconds


Decorator = Callable[[Callable[..., None]], Callable[..., None]]

allow_option: Decorator = click.option(
    "--allow",
    callback=allow_argument,
    metavar="WORD,WORD",
    help=f"Techniques that schedules may use, of {', '.join(TECHNIQUES)}; the last two need offload. "
    "For some tensors alone: recompute:activations or :gradients; offload:activations, :weights, "
    ":gradients or :states.  [default: all]",
)


def time_limit_option(words: str, default: float | None = None) -> Decorator:
    """Return --time-limit. words: its help, with the default."""
    return click.option(
        "--time-limit",
        type=SECONDS,
        callback=seconds_argument,
        default=default,
        metavar=TIME_METAVAR,
        help=words,
    )


def bound_time_option(words: str, default: float) -> Decorator:
    """Return --bound-time. words: its help."""
    return click.option(
        "--bound-time",
        type=SECONDS,
        callback=allowance_argument,
        default=default,
        metavar=TIME_METAVAR,
        help=f"{words}  [default: {default:g} s]",
    )


def _lower(ctx: click.Context, param: click.Parameter, name: str | None) -> str | None:
    del ctx, param
    return None if name is None else name.lower()


def device_option(words: str) -> Decorator:
    """Return --device, in any case. words: its help, with the default."""
    return click.option(
        "--device",
        metavar="cpu|cuda",
        callback=_lower,
        help=words,
    )


def count_option(flag: str, name: str, metavar: str, words: str, **more: Any) -> Decorator:
    """Return an option for a number of iterations or repetitions, 1 or more. words: its help."""
    return click.option(flag, name, type=click.IntRange(min=1), metavar=metavar, help=words, **more)


def settings_option(metavar: str = "KEY=VALUE", of: str = "the solver") -> Decorator:
    """Return --set. of: whose settings."""
    return click.option(
        "--set",
        "settings",
        multiple=True,
        callback=settings_argument,
        metavar=metavar,
        help=f"Setting of {of} (plan solvers NAME); may be given several times.",
    )


def output_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Add --json, --quiet, --verbose and --debug to a command."""
    for flag in (
        click.option("--debug", is_flag=True, help="Show the traceback of an error."),
        click.option(
            "--verbose",
            "-v",
            count=True,
            metavar="",
            help="Log decisions on standard error; -vv: each step of a search too.",
        ),
        click.option("--quiet", "-q", is_flag=True, help="No notes and no progress on standard error."),
        click.option("--json", "as_json", is_flag=True, help="Print one JSON object."),
    ):
        command = flag(command)
    return command


def answer_of(ctx: click.Context) -> Answer:
    """Return the JSON object of the command that is being called."""
    found = ctx.find_root().obj
    return found if isinstance(found, Answer) else Answer()


def output_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the output flags after the command's name, as they are before it; the command gets an `output`."""

    @output_flags
    @wraps(function)
    def command(*args: Any, as_json: bool, quiet: bool, verbose: int, debug: bool, **options: Any) -> None:
        del debug  # the group has read it: errors in the command line need it too
        ctx = click.get_current_context()
        before, answer = ctx.find_root().params, answer_of(ctx)
        aside = options.get("destination") == STDOUT
        answer.wanted = as_json or before.get("as_json", False)
        output = Output(answer.wanted, quiet or before.get("quiet", False), aside, answer)
        if aside and output.as_json:
            raise click.UsageError("--json and -o - both print on standard output: give one")
        for line in click.get_current_context().meta.get(NOTES, ()):
            output.note(line)
        with logged(max(verbose, before.get("verbose", 0))):
            function(*args, output=output, **options)

    return command


def _writable_or_printed(ctx: click.Context, param: click.Parameter, path: Path | None) -> Path | None:
    printed = path is not None and str(path) in (str(STDOUT), "/dev/stdout")
    return STDOUT if printed else writable(ctx, param, path)


def destination_option(default: str) -> Decorator:
    """Return -o. default: the name that the file has without the option, for --help."""
    return click.option(
        "-o",
        "--output",
        "destination",
        type=FILE,
        callback=_writable_or_printed,
        help="File to write: .json or .yaml; .gz may follow; - for standard output, as JSON.  "
        f"[default: {default}]",
    )


def table_option(words: str) -> Decorator:
    """Return -o of a command that writes a table. words: its help, with the default."""
    return click.option(
        "-o", "--output", "destination", type=FILE, callback=table_argument, help=f"File for {words}"
    )


graph_option = click.option(
    "--graph",
    "graph_path",
    type=FILE,
    help="File of the schedule's graph.  [default: the one of its sha256, next to the schedule or in the "
    "working folder]",
)


def budget_option(default: str) -> Decorator:
    """Return --budget. default: in words."""
    return click.option(
        "--budget",
        callback=budget_argument,
        metavar="12GB|11.5GiB|60%|60%a",
        help="Device memory. 12G is 12GB, 10^9 bytes each; 60% is of the baseline's peak; 60%a is all that "
        f"stays throughout an iteration, plus 60 % of what the peak has above that.  [default: {default}]",
    )


solver_option = click.option(
    "--solver",
    default=DEFAULT_SOLVER,
    show_default=True,
    metavar="NAME",
    shell_complete=completing(solvers),
    help="Solver, one of those that `plan solvers` lists.",
)


def machine_option(default: str) -> Decorator:
    """Return --machine. default: in words."""
    return click.option(
        "--machine",
        "machine_path",
        type=FILE,
        shell_complete=completing(machines_here, files=True),
        metavar="FILE|NAME|auto",
        help="Machine: a file or a preset (plan machine --list); auto: this one, with its GPU, measured the "
        f"first time and kept.  [default: {default}]",
    )


def chosen_machine(path: Path | None, output: Output) -> Machine | None:
    """Return the machine of --machine; None without the option. Raises InputError, one line."""
    if path is None or str(path) != "auto":
        return None if path is None else find_machine(path)
    from ..devices.measuring.kept_machine import auto_machine

    with output.status("measuring this machine") as report:
        found = auto_machine(report)
    output.note(found.line)
    return found.machine
