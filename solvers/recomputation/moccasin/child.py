"""The child that searches (process.py): questions come in as lines, what is found goes out as lines.

    python -m memplan.solvers.recomputation.moccasin.child GRAPH

The line `stop N` ends the search for the N-th question, the end of the input ends the child.
"""

from __future__ import annotations

import sys
from itertools import count
from pathlib import Path
from queue import SimpleQueue

from ....graphs.files.files import load_graph
from ...child import listen
from .model import retention_program
from .question import Found, Question
from .search import Search
from .start import hint
from .timeline import Timeline


class _Desk:
    """Takes the lines in, while a search is on. stopped: the number of the last question that is over."""

    def __init__(self) -> None:
        self.questions: SimpleQueue[str] = SimpleQueue()
        self.search: Search | None = None
        self.stopped = 0
        listen(self._take)

    def _take(self, line: str) -> None:
        if line.startswith("stop "):
            self.stopped = int(line[5:])
            if self.search:
                self.search.stop()
        else:
            self.questions.put(line)


def main() -> None:
    graph = load_graph(Path(sys.argv[1]))
    desk = _Desk()
    for number in count(1):
        question = Question.read(desk.questions.get())
        timeline = Timeline(graph, question.capacity, question.copies)
        program = retention_program(timeline, least=question.least)
        if question.start:
            hint(program, question.start)
        desk.search = Search(program, question.limits, _tell)
        _tell(desk.search.run() if desk.stopped < number else Found.nothing())
        desk.search = None


def _tell(found: Found) -> None:
    print(found.line(), flush=True)


if __name__ == "__main__":
    main()
