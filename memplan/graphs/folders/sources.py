"""A hash of memplan's own files: what another state of them has written may not hold for this one."""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from pathlib import Path


@cache
def sources_digest() -> str:
    """Return the hash of memplan's Python files."""
    root = Path(__file__).parents[2]
    packages = (path for path in root.iterdir() if (path / "__init__.py").exists())
    files = sorted(file for package in packages for file in package.rglob("*.py"))
    return sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
