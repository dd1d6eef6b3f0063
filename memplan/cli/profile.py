"""`plan profile`: a model traced and measured, as a graph."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from ..graphs.files.files import save_graph
from ..planner.budget import Budget
from .help import PlanCommand
from .in_pieces import graphs_with_splits, splits_rows
from .options import ANY, destination_option, output_options, pieces_argument
from .printing.figures import made_document, made_rows
from .printing.output import Output, labelled
from .printing.output_files import destination_of, write_out
from .profiling import Measurement, in_pieces, make_graph, measurement_options, source_rows


@click.command(cls=PlanCommand)
@click.argument("model", metavar="MODEL.py[:ENTRY]")
@destination_option("MODEL.graph.json in the working folder")
@measurement_options
@click.option(
    "--split",
    metavar="SIZE",
    callback=pieces_argument,
    help="Budget, like 12GB or 60%, for which operations run in pieces, each within half of it; any: for "
    "each budget `plan solve` chooses among splits.  [default: operations are whole]",
)
@click.option(
    "--split-exact",
    metavar="SIZE",
    callback=pieces_argument,
    help="Budget as of --split, or any, for pieces that came out bit by bit as the whole.  [default: "
    "operations are whole]",
)
@output_options
def profile(
    model: str,
    destination: Path | None,
    measurement: Measurement,
    split: Budget | None,
    split_exact: Budget | None,
    output: Output,
) -> None:
    """Trace MODEL.py and measure its operations: makes a graph.

    ENTRY (default: build) is a function that returns (module, example_inputs), (module, example_inputs,
    loss_fn) or (module, example_inputs, loss_fn, targets). The file is run. Exits with code 5 if the
    traced iteration is not bitwise equal to eager over two iterations. --estimate traces without memory for
    the model, for the GPU of --gpu, which need not be here. --optimizer adds its states and the updates of
    the weights, which can also run on the CPU. --compile fuses operations: results differ from eager by
    rounding, their error against float64 is at most 4 times eager's own. So does --split, which runs large
    operations in pieces; --split-exact keeps eager's bits. With `any` the graph holds the whole operations
    too, and up to eight splits, with more and more pieces.

    \b
    plan profile model.py -o graph.yaml --device cuda
    plan profile model.py --gpu rtx3060 --optimizer adamw -o graph.yaml
    plan profile model.py --split any -o graph.yaml
    """
    to = destination_of(destination, model, ".graph.json")
    asked = in_pieces(measurement, split, split_exact)
    if asked.within is ANY:
        graph, splits = graphs_with_splits(model, asked, output)
    else:
        graph, splits = make_graph(model, asked, output), []
    written = write_out(to, partial(save_graph, graph, splits=splits))
    output.result(
        {**made_document(graph), "splits": [made_document(each) for each in splits], "graph": written.name},
        labelled([*made_rows(graph), *source_rows(graph.source), *splits_rows(splits), *written.row()]),
    )
    written.tell()
