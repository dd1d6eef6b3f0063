"""Planned and reached rates of a disk, in pairs: what `plan machine` measures there, and how fast the queues
of a step then move the copies of a training turn, both ways at once.

    python benchmarks/disk.py FOLDER [PAIRS]
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from time import perf_counter

from memplan.devices.measuring.disk_rates import disk_rates
from memplan.devices.storage.copies import read, write
from memplan.devices.storage.disk import Disk, File
from memplan.devices.storage.host_buffers import Host, HostBuffer
from memplan.planner.simulator.clock import Queue
from memplan.runtime.run.queues import Queues

MIB = 2**20
SIZES = tuple(MIB * size for size in (27, 9, 36, 36, 154, 9, 27, 36, 64, 36))
"""Bytes of the copies: a transformer's states, its embedding among them."""
TURNS = 3


def filled(size: int) -> HostBuffer:
    block = Host().block(size).open()
    block.bytes.random_(0, 256)
    return block


def reached(folder: Path) -> tuple[float, float]:
    """Bytes/s read and written. Each copy is read while another is written; the first turn is not timed."""
    disk, queues = Disk(2 * sum(SIZES), folder), Queues()
    blocks = {size: filled(size) for size in set(SIZES)}
    targets = {size: filled(size) for size in set(SIZES)}
    left, right = ([disk.file(size) for size in SIZES] for _ in range(2))
    for file in (*left, *right):
        write(blocks[file.size], file)
    ends: dict[Queue, float] = {}

    def timed(queue: Queue, files: Sequence[File]) -> None:
        start = perf_counter()
        for _turn in range(TURNS):
            for file in files:
                if queue == Queue.DISK_READ:
                    read(file, targets[file.size])
                else:
                    write(blocks[file.size], file)
        ends[queue] = perf_counter() - start

    for queue, files in ((Queue.DISK_READ, left), (Queue.DISK_WRITE, right)):
        queues.add(queue, timed, (queue, files), (), ())
    queues.drain()
    queues.close()
    moved = TURNS * sum(SIZES)
    return moved / ends[Queue.DISK_READ], moved / ends[Queue.DISK_WRITE]


def main() -> None:
    folder, pairs = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 7
    shares: list[tuple[float, float]] = []
    for pair in range(pairs):
        rates = disk_rates(folder)
        alone = rates.read.alone[0].median, rates.write.alone[0].median
        planned = rates.read.both[0].median, rates.write.both[0].median
        found = reached(folder)
        shares.append((found[0] / planned[0], found[1] / planned[1]))
        print(
            f"{pair + 1}: alone {alone[0] / 1e9:.2f} and {alone[1] / 1e9:.2f} GB/s, "
            f"planned {planned[0] / 1e9:.2f} and {planned[1] / 1e9:.2f}, reached {found[0] / 1e9:.2f} and "
            f"{found[1] / 1e9:.2f}: {shares[-1][0]:.0%} and {shares[-1][1]:.0%}",
            flush=True,
        )
    print(
        f"median of {pairs} pairs: {median(s[0] for s in shares):.0%} read, "
        f"{median(s[1] for s in shares):.0%} written"
    )


if __name__ == "__main__":
    main()
