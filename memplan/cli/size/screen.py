"""The lines of `plan size`: the answer for one GPU; for several what fits at once, then rows as they come."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass

from rich.text import Text

from ...sizing.answer import Answer, Row, several_facts
from ...sizing.at_once import AtOnce
from ...sizing.result import SizeResult
from ...sizing.sizing import Sizing
from ...sizing.tables import at_once_table, gpu_table
from ..printing.output import Output, labelled, table

_CELL = 9
"""Characters of a column at least, since rows that come later may be wider than its head."""
_BATCH_CELL = len("1,024 (1,024)")
"""Characters of a column of batches with their speed."""


@dataclass
class Screen:
    """The lines of one command, from the first stage to the end.

    working: a context in which the model may be traced; it shows a line, and yields what replaces the line.
    """

    sizing: Sizing
    output: Output
    working: Callable[[str], AbstractContextManager[Callable[[str], None]]]

    def at_once(self) -> list[AtOnce]:
        """Return what fits without a plan, of several GPUs; each row is printed as it comes."""
        found, rows = list[AtOnce](), self.sizing.at_once() if self.sizing.several else iter(())
        with suppress(KeyboardInterrupt):
            while True:
                with self.working("what fits without a plan") as report:
                    self.sizing.report = report
                    one = next(rows, None)
                if one is None:
                    break
                found.append(one)
                self._print(self._at_once_row(one, head=len(found) == 1))
        if found:
            self._print([Text("")])
        return found

    def each(self, at_once: Sequence[AtOnce]) -> Iterator[SizeResult]:
        """Yield the results; those of several GPUs are printed as they come."""
        if self.sizing.several and len(at_once) < len(self.sizing.gpus):  # interrupted in the first stage
            preset, room = self.sizing.gpus[0]
            found = SizeResult(preset, room, preset.machine, interrupted=True)
            self._row(found, head=True)
            yield found
            return
        results, head = self.sizing.results(), True
        while True:
            with self.working("looking for plans") as report:
                self.sizing.report = report
                found = next(results, None)
            if found is None:
                return
            if self.sizing.several:
                self._row(found, head=head)
            yield found
            head = False

    def end(self, answer: Answer) -> Iterator[Text]:
        """Yield what is left to print."""
        if self.sizing.several:
            yield from labelled(answer.summary)
            return
        if answer.line:
            yield Text(answer.line, style="bold")
        yield from labelled(answer.facts)
        yield from table(answer.table.table.heads, answer.table.table.rows)
        yield from labelled(answer.summary)
        for section in answer.details:
            yield Text("")
            if not section.untitled:
                yield Text(section.table.title, style="bold")
            yield from table(section.table.heads, section.table.rows)

    def _at_once_row(self, one: AtOnce, *, head: bool) -> Iterator[Text]:
        made = at_once_table([one])
        widths = [max(_BATCH_CELL, len(name)) for name in made.heads]
        lines = [*table(made.heads, made.rows, widths=[_CELL, *widths[1:]])]
        if head:
            facts: list[Row] = several_facts(self.sizing.subject)
            yield from labelled(facts)
            yield Text(made.title, style="bold")
            yield lines[0]
        yield from lines[1:]

    def _row(self, found: SizeResult, *, head: bool) -> None:
        made = gpu_table(
            [found], "with plans: batches, by the time of an iteration", "", priced=bool(self.sizing.prices)
        )
        widths = [max(_CELL, len(name)) for name in made.heads]
        lines = [*table(made.heads, made.rows, widths=widths)]
        self._print([Text(made.title, style="bold"), *lines] if head else lines[1:])

    def _print(self, lines: Iterator[Text] | list[Text]) -> None:
        if not self.output.as_json:
            self.output.lines(lines)
