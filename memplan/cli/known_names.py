"""Names of solvers, machines, corpora and instances that a shell completes.

They are loaded only when they are requested. completion.py prints the shell's script.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import click
from click.shell_completion import CompletionItem

Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def completing(names: Callable[[], Iterable[str]], *, files: bool = False) -> Complete:
    """Return a completion for names, also after a comma. files: whether the shell adds its own files."""

    def complete(ctx: click.Context, param: click.Parameter, begun: str) -> list[CompletionItem]:
        del ctx, param
        # The shell replaces the whole word, so what is before the comma is given back.
        before, comma, last = begun.rpartition(",")
        found = [CompletionItem(before + comma + name) for name in names() if name.startswith(last)]
        return [*found, *([CompletionItem(begun, type="file")] if files else [])]

    return complete


def solvers() -> list[str]:
    from ..solvers.registry.catalogue import entries

    return [entry.name for entry in entries()]


def machines() -> Iterable[str]:
    from ..graphs.machines.presets import presets

    return presets()


def every_machine() -> list[str]:
    return [*machines(), "all"]


def machines_here() -> list[str]:
    return [*machines(), "auto"]


def corpora() -> Iterable[str]:
    from ..instances.catalogue import corpora

    return corpora()


def instances() -> list[str]:
    from ..instances.catalogue import entries

    return [entry.name for entry in entries()]
