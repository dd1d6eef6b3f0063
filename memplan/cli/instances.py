"""`plan instances`: the graphs that come with memplan, where they come from and what is open."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click
from rich.text import Text

from ..comparison.best_known import OPEN_PERCENT, Best, load_best
from ..graphs.files.files import save_graph
from ..graphs.units import duration, format_bytes
from ..instances.catalogue import BEST_KNOWN, FILES, Corpus, Entry, Known, corpora, entries, entry, oracles
from ..instances.catalogue import corpus as corpus_named
from .help import PlanCommand
from .known_names import completing
from .known_names import corpora as corpus_names
from .known_names import instances as instance_names
from .options import destination_option, output_options
from .printing.output import Output, Row, labelled, table
from .printing.output_files import write_out

Records = dict[str, list[Best]]
"""Records by the instance's name."""

LEGEND = (
    f"open: budgets whose best known schedule is more than {OPEN_PERCENT:g} % above its bound, of those tried"
)


@click.command(cls=PlanCommand)
@click.argument("name", required=False, shell_complete=completing(instance_names))
@click.option(
    "--corpus",
    "corpus_name",
    metavar="NAME",
    shell_complete=completing(corpus_names),
    help="Corpus whose graphs are listed.  [default: all]",
)
@destination_option("none")
@output_options
def instances(name: str | None, corpus_name: str | None, destination: Path | None, output: Output) -> None:
    """List the graphs that come with memplan; with NAME show one, with -o write it as a graph file.

    \b
    plan instances --corpus public
    plan instances unet -o unet.yaml
    """
    if name is None:
        if destination:
            raise click.UsageError("-o writes one instance: give its NAME")
        chosen = [corpus_named(corpus_name)] if corpus_name is not None else list(corpora().values())
        _list(chosen, corpus_name is None, output)
        return
    if corpus_name is not None:
        raise click.UsageError("--corpus is for the list: give NAME or --corpus")
    found = entry(name)
    written = write_out(destination, lambda path: save_graph(found.graph(), path))
    records = _records().get(name, [])
    document = _document(found, records)
    if written.name:
        document["written"] = written.name
    output.result(document, labelled([*_rows(found, records), *written.row()]))
    written.tell()


def _list(chosen: list[Corpus], with_oracles: bool, output: Output) -> None:
    records = _records()
    listed = [one for corpus in chosen for one in corpus.instances.values()]
    document: dict[str, Any] = {
        "instances": [_document(one, records.get(one.name, [])) for one in listed],
        "oracles": [{**asdict(one), "file": str(FILES / one.file)} for one in oracles()]
        if with_oracles
        else [],
    }
    output.result(document, _tables(chosen, records, with_oracles))


def _tables(chosen: list[Corpus], records: Records, with_oracles: bool) -> Iterator[Text]:
    for corpus in chosen:
        yield Text.assemble((corpus.name, "bold"), f": {corpus.about}")
        yield Text(f"{corpus.origin}; {corpus.licence}", style="dim")
        heads = ["operations", "tensors", "bytes", "open", "name"]
        yield from table(
            heads, (_cells(one, records.get(one.name, [])) for one in corpus.instances.values()), indent=2
        )
        yield Text()
    if with_oracles:
        yield Text.assemble(("oracles", "bold"), f": answers to compare with, in {FILES}")
        yield from labelled((f"  {one.file}", one.about) for one in oracles())
        yield Text()
    yield Text(LEGEND, style="dim")


def _cells(one: Entry, records: list[Best]) -> list[str]:
    unclosed = f"{_open(records)} of {len(records)}" if records else ""
    return [f"{one.operations:,}", f"{one.tensors:,}", format_bytes(one.bytes), unclosed, one.name]


def _rows(one: Entry, records: list[Best]) -> Iterator[Row]:
    yield "instance", f"{one.name} of {one.corpus}: {one.operations:,} operations, {one.tensors:,} tensors"
    yield "bytes", f"{format_bytes(one.bytes)} in all tensors"
    yield "origin", one.origin
    yield "licence", one.licence
    for known in one.known:
        yield "known", _known(known)
    for best in records:
        bound = "no bound" if best.gap_percent is None else f"gap {best.gap_percent:.1f}%"
        how = f"{best.solver}, {best.date}"
        yield "best", f"{duration(best.time)} within {_budget(best.budget)}, {bound} ({how})"


def _known(known: Known) -> str:
    least = duration(known.seconds) if known.seconds is not None else f"+{known.overhead_percent:g}%"
    order = "" if known.order == "any" else " in traced order"
    return f"{least}{order} is the least within {_budget(known.budget)}"


def _budget(text: str) -> str:
    return format_bytes(int(text)) if text.isdecimal() else text


def _document(one: Entry, records: list[Best]) -> dict[str, Any]:
    return {
        **asdict(one),
        "file": str(one.path) if one.path else None,
        "best": [{**asdict(best), "gap_percent": best.gap_percent} for best in records],
        "open": _open(records),
    }


def _open(records: list[Best]) -> int:
    return sum(best.is_open for best in records)


def _records() -> Records:
    """Return the records. A minimum time that is known for any order counts as a bound too."""
    found: Records = defaultdict(list)
    least = {
        (one.name, known.budget): known.seconds for one in entries() for known in one.known if known.holds
    }
    for best in load_best(BEST_KNOWN).values():
        at = [least.get((best.graph, budget)) or 0.0 for budget in (best.budget, str(best.bytes))]
        # Both lower bounds hold, so the larger one does.
        found[best.graph].append(replace(best, bound=max(best.bound or 0.0, *at) or None))
    return found
