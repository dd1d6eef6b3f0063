"""A process that trains by itself, as ranks of which there is one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

Result = TypeVar("Result")


class SingleRank:
    """The only rank: it has nobody to agree with, to wait for, or to tell; see Ranks."""

    rank = 0
    size = 1
    on_node = 1

    def gathered(self, mine: Any) -> list[Any]:
        return [mine]

    def from_first(self, mine: Any) -> Any:
        return mine

    def together(self, make: Callable[[], Result]) -> Result:
        return make()

    def note(self, error: BaseException | None) -> None:
        pass

    def beating(self) -> AbstractContextManager[None]:
        return nullcontext()

    def in_order(self) -> AbstractContextManager[None]:
        return nullcontext()


SINGLE = SingleRank()
