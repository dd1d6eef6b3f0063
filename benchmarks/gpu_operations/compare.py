"""Compare traces for absent GPUs with what PyTorch's CUDA build chooses, row by row.

python -m benchmarks.gpu_operations.compare [--capability 9.0] [--model gpt2] [-o rows.tsv]
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

from memplan.devices.absent_gpu.capability import Capability
from memplan.profiling.profile.estimate import trace_for
from memplan.program.program import Program

from .record import GOLDEN
from .rows import Row, answered, iteration, read_rows, write_rows


def traced(row: Row) -> Program:
    """Trace the program of a row for its capability."""
    return trace_for(Capability.parse(row.capability), lambda: iteration(row))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--capability")
    parser.add_argument("--model")
    parser.add_argument("-o", "--output", type=Path, help="write the rows of the traces")
    options = parser.parse_args()
    traced_rows: list[Row] = []
    met: Counter[str] = Counter()
    for row in read_rows(GOLDEN):
        if options.capability not in (None, row.capability) or options.model not in (None, row.model):
            continue
        made = answered(Row(*row.key), lambda row=row: traced(row))
        traced_rows.append(made)
        met["rows"] += 1
        met["operations and bytes"] += (made.counts, made.saved) == (row.counts, row.saved) and not row.fault
        met["fingerprint"] += made.fingerprint == row.fingerprint and not row.fault
        met["no trace with CUDA"] += bool(row.fault)
        if made != row:
            print("CUDA  ", *row, sep="\t")
            print("memplan", *made, sep="\t", flush=True)
    for name, number in met.items():
        print(f"{name}: {number}")
    if options.output:
        write_rows(options.output, traced_rows)


if __name__ == "__main__":
    main()
