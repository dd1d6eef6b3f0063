"""Searches of Moccasin's programs in a process of their own.

OR-tools and highspy each bring a libhighs of their own version, and one process can load only one of them. A
child also may crash or hang without taking us with it, and Ctrl-C keeps the best that it has told.

    with Searcher(graph) as searcher:
        found = searcher.search(Question(capacity, copies, start, least=False, limits=Limits(10.0)))

It takes a second to start; one searcher answers any number of questions about its graph.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from pathlib import Path
from time import monotonic
from types import TracebackType

from ....graphs.files.files import save_graph
from ....graphs.folders.scratch import Scratch
from ....graphs.graph import Graph
from ...child import Dialogue
from ...milp.result import BackendError
from .question import Found, Question

GRACE_SECONDS = 20.0
"""How long after its time limit a search may be at work before it counts as hung."""


class Searcher:
    """interrupted: Ctrl-C ended the last search."""

    def __init__(self, graph: Graph) -> None:
        self.folder = Scratch("moccasin")
        self.interrupted = False
        save_graph(graph, Path(self.folder.name) / "graph.json")
        self._start()

    def _start(self) -> None:
        module = "memplan.solvers.recomputation.moccasin.child"
        self.child = Dialogue(module, Path(self.folder.name), "graph.json")
        self.asked = 0

    def __enter__(self) -> Searcher:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.child.end()
        self.folder.cleanup()

    def search(self, question: Question, progress: Callable[[Found], None] = lambda _found: None) -> Found:
        """The best found. progress: called with every new best. The first Ctrl-C ends the search."""
        best, self.interrupted, stopped = Found.nothing(), False, inf
        seconds = question.limits.seconds
        end = inf if seconds is None else monotonic() + seconds
        self.asked += 1
        self.child.say(question.line())
        while True:
            try:
                line = self.child.hear(0.05)
            except KeyboardInterrupt:
                if self.interrupted:
                    raise
                self.interrupted, line, end = True, None, 0.0
            if line == "":
                raise BackendError(f"CP-SAT crashed: {self.child.last_words()}")
            if line:
                best = Found.read(line)
                if best.done:
                    return best
                progress(best)
            elif stopped == inf and monotonic() > end:
                stopped = monotonic()
                self.child.say(f"stop {self.asked}")
            elif monotonic() > stopped + GRACE_SECONDS:
                self.child.end()
                self._start()  # what a hung search still tells would be taken for the next one's answer
                return best
