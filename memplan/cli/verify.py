"""`plan verify`: a schedule and what is claimed for it, proven from its certificate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ..graphs.errors import InputError, MismatchError
from ..graphs.files.documents import read_document
from ..graphs.files.fields import mapping
from ..graphs.files.kinds import check_format
from ..graphs.files.write import graph_to_document
from ..planner.budget import spelled
from ..planner.certificates import verify as verifier
from .exits import CheckFailedError
from .find_graph import find_graph, load_graph_of
from .help import PlanCommand
from .options import graph_option, output_options
from .parameter_types import DOCUMENT
from .printing.figures import graph_row
from .printing.output import Output, labelled
from .replay import is_graph, read_schedule_document


@click.command(cls=PlanCommand)
@click.argument("schedule", type=DOCUMENT)
@click.option(
    "--certificate",
    "certificate_path",
    type=DOCUMENT,
    required=True,
    help="File that `plan solve --certificate` has written for this schedule.",
)
@graph_option
@output_options
def verify(schedule: Path, certificate_path: Path, graph_path: Path | None, output: Output) -> None:
    """Prove the claims for SCHEDULE: that it keeps the rules, its peak, its time, each lower bound.

    `plan check` replays by memplan's simulator. This is another program, of one file, with exact numbers: it
    shares nothing with the solvers, and runs without memplan too (`python verify.py SCHEDULE CERTIFICATE
    GRAPH`). A claim that nothing proves is shown with the name of who claims it. Exit code 5 where a claim
    does not follow, 6 where the files do not belong together.

    If `plan solve` has found that there is no schedule, SCHEDULE is the graph.

    \b
    plan solve graph.yaml --budget 60% -o schedule.json --certificate certificate.json
    plan verify schedule.json --certificate certificate.json
    """
    of_graph = graph_path is None and is_graph(schedule)
    document = None if of_graph else read_schedule_document(schedule)
    try:
        certificate = mapping(read_document(certificate_path), "a certificate")
        check_format(certificate, verifier.FORMAT)
    except ValueError as error:
        raise InputError(f"{certificate_path}: {error}") from None
    if of_graph != ("refused" in certificate):
        way = "give its graph in place of a schedule" if not of_graph else "give the schedule that it is of"
        raise InputError(
            f"{certificate_path}: it proves {'claims' if of_graph else 'that there is no schedule'}: {way}"
        )
    if of_graph:
        graph_path = schedule
    if graph_path is None:
        graph = find_graph(schedule, document)[1]
    else:
        graph = load_graph_of(graph_path, certificate["refused"] if of_graph else document)
    try:
        # The verifier reads graphs as memplan writes them; a user's file may have units, or name defaults.
        claims = verifier.verify(document, certificate, graph_to_document(graph))
    except verifier.ClaimError as error:
        output.refusal({"verified": False})
        raise CheckFailedError(f"{schedule}: {error}") from None
    except verifier.SubjectError as error:
        raise MismatchError(f"{schedule}, {certificate_path}: {error}") from None
    except verifier.DocumentError as error:
        raise InputError(f"{schedule}, {certificate_path}: {error}") from None
    rows = [(claim.what, _with_unit(claim)) for claim in claims]
    output.result(
        {"verified": True, "claims": [_row(claim) for claim in claims]},
        labelled([graph_row(graph), *rows]),
    )


def _with_unit(claim: verifier.Claim) -> str:
    """Return the verdict on a claim, with the unit of its value."""
    if claim.value is None or claim.what.startswith("steps"):
        return claim.verdict
    value, proof = claim.verdict.split(": ", 1)
    if claim.what.endswith("time") or claim.what.startswith("lower bound"):
        return f"{value} s: {proof.replace(' is proven', ' s is proven')}"
    return f"{spelled(int(claim.value))}: {proof}"


def _row(claim: verifier.Claim) -> dict[str, Any]:
    """Return a claim for JSON.

    value: null if it is that there is no schedule. proven: what is proven of it; all if it is checked.
    """
    proven = claim.least if claim.by else claim.value
    found = {"claim": claim.what, "value": claim.value, "checked": not claim.by}
    return {**found, "by": claim.by, "proven": proven}
