"""Searches of Moccasin's programs in a process of their own.

OR-tools and highspy each bring a libhighs of their own version, and one process can load only one of them. A
child also may crash or hang without taking us with it, and Ctrl-C keeps the best that it has told.

    with Searcher(graph) as searcher:
        found = searcher.search(Question(window, start, least=False, limits=Limits(10.0)))

It takes a second to start; one searcher answers any number of questions about its graph.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from math import inf
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from time import monotonic
from types import TracebackType

from ....graphs.files.files import save_graph
from ....graphs.folders.scratch import Scratch
from ....graphs.graph import Graph
from ... import child
from ...milp.result import BackendError
from .question import Found, Question

GRACE_SECONDS = 20.0
"""How long after its time limit a search may be at work before it counts as hung."""


class Searcher:
    """interrupted: Ctrl-C ended the last search."""

    def __init__(self, graph: Graph) -> None:
        self.folder = Scratch("moccasin")
        self.interrupted = False
        path = Path(self.folder.name)
        save_graph(graph, path / "graph.json")
        self.complaint = (path / "complaint").open("wb")
        self.child = subprocess.Popen(
            [
                sys.executable,
                "-W",
                "ignore",
                "-m",
                "memplan.solvers.recomputation.moccasin.child",
                "graph.json",
            ],
            cwd=path,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.complaint,
            start_new_session=True,  # Ctrl-C reaches us alone
        )
        self.told: SimpleQueue[bytes] = SimpleQueue()
        self.asked = 0
        Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for line in self.child.stdout or ():
            self.told.put(line)
        self.child.wait()
        self.told.put(b"")

    def __enter__(self) -> Searcher:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        child.kill(self.child)
        self.complaint.close()
        self.folder.cleanup()

    def search(self, question: Question, progress: Callable[[Found], None] = lambda _found: None) -> Found:
        """The best found. progress: called with every new best. The first Ctrl-C ends the search."""
        best, self.interrupted, stopped = Found.nothing(), False, inf
        seconds = question.limits.seconds
        end = inf if seconds is None else monotonic() + seconds
        self.asked += 1
        self._say(question.line())
        while True:
            try:
                try:
                    line = self.told.get(timeout=0.05)
                except Empty:
                    line = None
            except KeyboardInterrupt:
                if self.interrupted:
                    raise
                self.interrupted, line, end = True, None, 0.0
            if line == b"":
                raise BackendError(f"CP-SAT crashed: {child.last_words(self.child, Path(self.folder.name))}")
            if line:
                best = Found.read(line.decode())
                if best.done:
                    return best
                progress(best)
            elif stopped == inf and monotonic() > end:
                stopped = monotonic()
                self._say(f"stop {self.asked}\n")
            elif monotonic() > stopped + GRACE_SECONDS:
                return best

    def _say(self, line: str) -> None:
        if self.child.stdin:
            with suppress(BrokenPipeError):
                self.child.stdin.write(line.encode())
                self.child.stdin.flush()
