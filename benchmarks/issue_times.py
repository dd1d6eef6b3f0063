"""How long it takes until a copy is on its stream, with and without the thread that trains giving it there.

Protocol: random schedules of hostile.py on the simulated device, which is never late, four turns each;
the first two make the code, the others count. From the call that adds a copy to when its stream has it.
"threads alone": every copy is given by its queue's own thread, while the thread that trains goes on.
Usage: python benchmarks/issue_times.py [schedules]     (default 40)
"""

from __future__ import annotations

import random
import sys
import threading
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from hostile import NETS, Case, between_device_and_host, case, planned_step
from memplan.runtime.run.streams import DeviceJob, StreamQueue
from simulated_device.device import SimulatedDevice
from simulated_device.threads import Delays

Issued = list[tuple[float, bool]]
"""Of each copy the seconds, and whether the thread that trains gave it."""


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 40
    torch.set_num_threads(1)
    kinds = (
        ("device and host", [between_device_and_host(number) for number in range(count)]),
        ("with disk and CPU", [case(*NETS[number % 3], random.Random(number)) for number in range(count)]),
    )
    print("| schedules | given by | copies | by the thread that trains | median | 99 % within | worst |")
    print("|---|---|---|---|---|---|---|")
    for kind, cases in kinds:
        for title, alone in (("threads alone", True), ("either", False)):
            issued: Issued = []
            for made in cases:
                issued += _issued(made, alone=alone)
            seconds = 1e6 * np.array([one for one, _here in issued])
            share = np.mean([here for _one, here in issued])
            within = " | ".join(f"{x:,.0f} µs" for x in np.percentile(seconds, [50, 99, 100]))
            print(f"| {kind} | {title} | {len(issued):,} | {share:.1%} | {within} |")


def _issued(made: Case, *, alone: bool) -> Issued:
    device = SimulatedDevice(delays=lambda seed: Delays(seed, 0.0))
    found: Issued = []
    job, run, main_thread = StreamQueue.job, DeviceJob.run, threading.main_thread()
    begun: dict[int, float] = {}

    def begin(queue: StreamQueue, *arguments: Any) -> Any:
        start = time.perf_counter()
        one = job(queue, *arguments)
        begun[id(one)] = start
        return one

    def timed(one: DeviceJob) -> None:
        run(one)
        found.append((time.perf_counter() - begun[id(one)], threading.current_thread() is main_thread))

    never = patch.object(StreamQueue, "goes_at_once", lambda *_: False) if alone else nullcontext()
    with patch.object(StreamQueue, "job", begin), patch.object(DeviceJob, "run", timed), never:
        step = planned_step(made, device)
        for turn in range(4):
            if turn == 2:
                if step.cycle is not None:
                    step.cycle.end_jobs()
                found.clear()
            torch.manual_seed(turn)
            step.run(made.iteration.inputs)
        if step.cycle is not None:
            step.cycle.end_jobs()
        measured = list(found)
        step.restore_to_device()
    return measured


if __name__ == "__main__":
    main()
