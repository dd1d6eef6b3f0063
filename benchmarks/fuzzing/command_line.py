"""A command run in this process, and all that can be said against how it ended."""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

from click.testing import CliRunner, Result
from memplan.cli.exits import Exit
from memplan.cli.main import main

from .area import Fault

LONGEST_LINE = 4000
_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")
_FINE = {Exit.DONE, Exit.USAGE, Exit.NO_SCHEDULE, Exit.MISSING, Exit.CHECK_FAILED, Exit.MISMATCH}


def faults_of(words: Sequence[str], folder: Path) -> tuple[list[Fault], str]:
    """Of `plan WORDS` run in the folder; and how it ended, in a word."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            warnings.simplefilter("ignore", ResourceWarning)
            result = CliRunner().invoke(main, list(words))
    finally:
        os.chdir(before)
    faults = list(_faults(words, result, folder))
    faults += [Fault(f"warns: {w.category.__name__}", f"warns: {w.message}") for w in heard[:1]]
    return [Fault(f"{words[0]}: {kind}", f"{words[0]}: {detail}") for kind, detail in faults], (
        f"exit code {result.exit_code}"
    )


def _faults(words: Sequence[str], result: Result, folder: Path) -> Iterator[Fault]:
    error = result.exception
    if error is not None and not isinstance(error, SystemExit):
        yield Fault(type(error).__name__, f"{type(error).__name__} comes out: {error}")
        return
    lines = result.stderr.splitlines()
    reported = [line for line in lines if line.startswith("plan: error:")]
    if result.exit_code not in _FINE:
        named = re.search(r"an internal error: (\w+)", result.stderr)
        kind = named[1] if named else f"exit code {result.exit_code}"
        yield Fault(kind, f"exit code {result.exit_code}: {result.stderr[:300]}")
    elif len(reported) != (result.exit_code != Exit.DONE):
        yield Fault(f"{len(reported)} lines of error", f"exit code {result.exit_code}: {result.stderr[:300]}")
    if (
        result.exit_code == Exit.MISSING
        and "not installed" not in result.stderr
        and "backend=" not in str(words)
    ):
        yield Fault("nothing is missing", result.stderr[:300])
    if "not memory enough" in result.stderr or "machine's memory" in result.stderr:
        yield Fault("takes all memory", result.stderr[:300])
    if "Traceback" in result.stderr and "--debug" not in words:
        yield Fault("traceback", result.stderr[-500:])
    if any(len(line) > LONGEST_LINE for line in reported):
        yield Fault("long line", f"a line of {max(map(len, reported)):,} characters: {reported[0][:200]}")
    control = _CONTROL.search(result.stdout + result.stderr)
    if control:
        yield Fault("control characters", f"{control[0]!r} goes to the terminal")
    if "--json" in words and "--help" not in words and "-h" not in words and result.stdout:
        try:
            json.loads(result.stdout, parse_constant=_refused)
        except ValueError as fault:
            yield Fault("not JSON", f"standard output is not one JSON object: {fault}: {result.stdout[:200]}")
    left = [path.name for path in folder.rglob(".*") if path.is_file()]
    if left:
        yield Fault("leaves files", f"leaves {left[:3]}")


def _refused(word: str) -> float:
    raise ValueError(f"{word} is not a number that JSON has")
