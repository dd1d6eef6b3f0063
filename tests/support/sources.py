"""The subpackages of memplan, as the tests of its texts go through them."""

from __future__ import annotations

from pathlib import Path

import memplan


def layers() -> list[str]:
    """Return the names of the packages right below memplan."""
    return sorted(path.parent.name for path in Path(memplan.__file__).parent.glob("*/__init__.py"))
