"""Layouts of MiniMalloc's instances: bytes and processor time.

Protocol. Each file has rows `id,lower,upper,size`: a buffer of `size` bytes from step lower to step upper.
`lay_out` is called with a target of 1,048,576 bytes and its default effort, once before the clock runs, since
the search is compiled when it is first called.

    python benchmarks/addresses.py FILE.csv …        github.com/google/minimalloc, benchmarks/challenging
"""

from __future__ import annotations

import sys
from pathlib import Path
from time import process_time

import numpy as np
from memplan.planner.addresses.addresses import lay_out
from memplan.planner.addresses.lifetimes import Lifetimes

TARGET = 1_048_576


def instance(path: Path) -> Lifetimes:
    """Return the buffers of a file, of which none is there from one iteration to the next."""
    table = np.loadtxt(path, delimiter=",", skiprows=1, dtype=np.int64, ndmin=2)
    _names, lower, upper, size = table.T
    times = np.unique(table[:, 1:3])
    begin, end = np.searchsorted(times, lower), np.searchsorted(times, upper)
    return Lifetimes(np.arange(len(size)), size, begin, end, len(times))


def main(files: list[str]) -> None:
    print("| instance | buffers | live bytes | arena | share of the target | processor time |")
    print("|---|---|---|---|---|---|")
    for file in files:
        rows = instance(Path(file))
        lay_out(rows, TARGET, 1)
        begin = process_time()
        layout = lay_out(rows, TARGET)
        seconds = process_time() - begin
        name, live = Path(file).stem.partition(".")[0], int(rows.live().max())
        share = layout.size / TARGET
        print(f"| {name} | {len(rows.size)} | {live:,} | {layout.size:,} | {share:.3f} | {seconds:.2f} s |")


if __name__ == "__main__":
    main(sys.argv[1:])
