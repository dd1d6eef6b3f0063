"""Functions of `search` to compile in a worker process (workers/precompile.py)."""

from __future__ import annotations

from ...problem import Options
from ...workers.precompile import Code
from .rounds import at_hand, load


def compile_search() -> None:
    """Compile the search."""
    load(Options())


CODES = (Code(at_hand, f"{__name__}:compile_search"),)
