"""How fast large graph files are read and validated, and in how much memory.

Protocol: `layered(n)` is written as JSON to a temporary folder; a fresh process reads it three times.
Reported: the median seconds of the three and the process's largest resident set.
Usage: python benchmarks/graph_files.py [operations …]     (default 1000 10000 100000 1000000)
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from memplan.graphs.files.files import save_graph
from memplan.graphs.generators import layered

READ = """
import resource, statistics, sys, time
from memplan.graphs.files.files import load_graph
seconds = []
for _ in range(3):
    start = time.perf_counter()
    graph = load_graph(sys.argv[1])
    seconds.append(time.perf_counter() - start)
    del graph
print(statistics.median(seconds), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6)
"""


def main() -> None:
    sizes = [int(word) for word in sys.argv[1:]] or [1_000, 10_000, 100_000, 1_000_000]
    print("| operations | JSON | seconds | memory |\n|---|---|---|---|")
    for operations in sizes:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "graph.json"
            save_graph(layered(operations), path)
            run = [sys.executable, "-c", READ, str(path)]
            answer = subprocess.run(run, check=True, capture_output=True, text=True).stdout
            seconds, gigabytes = map(float, answer.split())
            size = path.stat().st_size / 1e6
        print(f"| {operations:,} | {size:.1f} MB | {seconds:.2f} | {gigabytes:.2f} GB |", flush=True)


if __name__ == "__main__":
    main()
