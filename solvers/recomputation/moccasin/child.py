"""The child that searches (process.py): questions come in as lines, what is found goes out as lines.

    python -m memplan.solvers.recomputation.moccasin.child GRAPH

The line `stop N` ends the search for the N-th question, the end of the input ends the child.
"""

from __future__ import annotations

import os
import sys
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from threading import Thread

from ....graphs.files.files import load_graph
from .model import retention_program
from .question import Found, Question
from .search import Search
from .start import hint


class _Desk:
    """Takes the lines in, while a search is on. stopped: the number of the last question that is over."""

    def __init__(self) -> None:
        self.questions: SimpleQueue[str] = SimpleQueue()
        self.search: Search | None = None
        self.stopped = 0
        Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in sys.stdin:
            if line.startswith("stop "):
                self.stopped = int(line[5:])
                if self.search:
                    self.search.stop()
            else:
                self.questions.put(line)
        os._exit(0)


def main() -> None:
    graph = load_graph(Path(sys.argv[1]))
    desk = _Desk()
    for number in count(1):
        question = Question.read(desk.questions.get(), graph)
        program = retention_program(question.window, least=question.least)
        if question.start:
            hint(program, question.start)
        desk.search = Search(program, question.limits, _tell)
        _tell(desk.search.run() if desk.stopped < number else Found.nothing())
        desk.search = None


def _tell(found: Found) -> None:
    sys.stdout.write(found.line())
    sys.stdout.flush()


if __name__ == "__main__":
    main()
