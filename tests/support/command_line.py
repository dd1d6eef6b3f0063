"""A folder for tests of the command line: small graphs, broken files, and a schedule that is solved once."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from click.testing import CliRunner
from memplan.cli.main import main
from memplan.graphs.files.files import save_graph
from memplan.graphs.generators import chain, layered


def write_files() -> None:
    """Into the current folder: chain.json (a chain of 8 blocks), dag.json, machine.yaml, and broken ones."""
    save_graph(chain(8), "chain.json")
    save_graph(layered(20), "dag.json")
    Path("machine.yaml").write_text("device: {capacity: 40MB}\n")
    Path("folder.json").mkdir()
    Path("half.json").write_text(Path("chain.json").read_text()[:500])
    Path("slow.yaml").write_text("device: {capacity: lots}\n")


def solved() -> dict[str, Any]:
    """Write s.json, a schedule of chain.json at 60 %. What `plan solve --json` said."""
    said, schedule = _solved_once()
    Path("s.json").write_text(schedule)
    return json.loads(said)


@cache
def _solved_once() -> tuple[str, str]:
    call = ["solve", "chain.json", "--budget", "60%", "-o", "s.json", "--json"]
    result = CliRunner().invoke(main, call)
    assert result.exit_code == 0, result.stderr
    return result.stdout, Path("s.json").read_text()
