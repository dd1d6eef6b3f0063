"""The versions of torch with which this package runs. Users of others are informed before anything of
torch is touched.
"""

from __future__ import annotations

import re
import warnings
from importlib.metadata import PackageNotFoundError, version

from ..graphs.errors import MissingPackageError

OLDEST, NEWEST = (2, 10), (2, 15)
"""The ends of what was tested, (major, minor). Until 2.9 a trace takes `silu_backward` and its like apart, so
that they round otherwise than in eager."""


def check_torch() -> None:
    """Raise MissingPackageError if the installed torch is too old.

    One that is newer than any tested gives a warning, in one line. Without torch, or without its metadata,
    nothing is said.
    """
    try:
        installed = version("torch")
    except PackageNotFoundError:
        return
    if (found := re.match(r"(\d+)\.(\d+)", installed)) is None:
        return
    major_minor = int(found[1]), int(found[2])
    if major_minor < OLDEST:
        raise MissingPackageError(
            f"torch {installed} is too old: memplan needs {_text(OLDEST)} or newer "
            "(pip install --upgrade 'memplan[torch]')"
        )
    if major_minor > NEWEST:
        # of no line of code: the import that leads here is none of the user's
        warnings.warn_explicit(
            f"torch {installed} is newer than any that memplan was tested with ({_text(OLDEST)} to "
            f"{_text(NEWEST)})",
            UserWarning,
            "memplan",
            1,
        )


def _text(pair: tuple[int, int]) -> str:
    return f"{pair[0]}.{pair[1]}"
