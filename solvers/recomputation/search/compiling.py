"""The search compiled by another process (solvers/compiling.py)."""

from __future__ import annotations

from ...compiling import Code
from ...problem import Options
from .rounds import at_hand, load

CODES = (Code(at_hand, __name__),)

if __name__ == "__main__":
    load(Options())
