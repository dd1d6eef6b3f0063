"""Every wait of the runtime taken out, one at a time: does the simulated device notice?

Protocol: per wait a process of its own loads the runtime with one line changed as the table tells, and runs
the schedules of waits.py, three failing iterations and random schedules of hostile.py (nets in
turn, seeds from 0 on) until one fails: another result than eager's, another peak than planned, a hazard that
the device itself found, an error, or no end. The schedules by hand run without a change first, and must pass.
The exit code is 1 if a removal was not noticed.
Usage: python benchmarks/removed_waits.py [schedules [words]]     (default 200, all whose name has the words)
"""

from __future__ import annotations

import importlib.machinery
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Thread
from types import CodeType
from typing import NamedTuple

import hypothesis  # noqa: F401  (what all of them need is loaded once)
import numba  # noqa: F401
import torch
import torch.fx.experimental.proxy_tensor

ROOT = Path(__file__).parents[1]
PATIENCE_SECONDS = 20
FAULT_SEEDS = (9, 30, 51)

sys.path.insert(0, str(ROOT / "tests" / "support"))


class Removal(NamedTuple):
    """A line of a file of memplan, and what stands there instead."""

    name: str
    file: str
    line: str
    instead: str = "pass"


REMOVALS = (
    # ── streams ──
    Removal(
        "a copy waits for the computations before it",
        "runtime/run/streams",
        "self.stream.wait_event(self.computed)",
    ),
    Removal(
        "a copy waits for copies on the other stream",
        "runtime/run/streams",
        "(wait_on(self.stream, ticket) for ticket",
        "(wait_on(self.stream, ticket) if not isinstance(ticket, DeviceTicket) else None for ticket",
    ),
    Removal(
        "a copy waits for jobs of other threads",
        "runtime/run/streams",
        "(wait_on(self.stream, ticket) for ticket",
        "(wait_on(self.stream, ticket) if isinstance(ticket, DeviceTicket) else None for ticket",
    ),
    Removal(
        "an event is waited for once it is recorded",
        "runtime/run/streams",
        "if (error := ticket.on_stream()) is None:",
        "if (error := None) is None:",
    ),
    Removal("a stream waits for an event", "runtime/run/streams", "stream.wait_event(ticket.event)"),
    Removal(
        "a thread waits until a copy is given",
        "runtime/run/streams",
        "if (error := self.on_stream()) is not None:",
        "if (error := None) is not None:",
    ),
    Removal("a thread waits until a copy has ended", "runtime/run/streams", "self.event.synchronize()"),
    Removal(
        "an event is recorded after its copy",
        "runtime/run/streams",
        "                work(*arguments)\n                event.record()",
        "                event.record()\n                work(*arguments)",
    ),
    # ── queues ──
    Removal(
        "a job waits for the tickets of others",
        "runtime/run/queues",
        "return next(filter(None, (ticket.error() for ticket in self.after)), None)",
        "return None",
    ),
    Removal("a job lets go before it works", "runtime/run/queues", "                self.gone = ()\n", ""),
    Removal(
        "a job lets go before its ticket ends",
        "runtime/run/queues",
        "        self.after = self.gone = self.arguments = ()\n        del self.work\n",
        "",
    ),
    # ── the code of a turn ──
    Removal(
        "computations wait for copies",
        "runtime/codegen/copies",
        'self.lines.append(f"wait({self.ticket(step)})")',
    ),
    Removal("a step's waits", "runtime/codegen/copies", "self.wait_for(self.iteration.waits.get(step, ()))"),
    Removal("a prefetch's room is waited for", "runtime/codegen/copies", "self.wait_for(ends.transfers)"),
    Removal(
        "a transfer waits for others",
        "runtime/codegen/copies",
        "for other in self.due(sorted(waits)))",
        "for other in ())",
    ),
    Removal(
        "a transfer lets go of host memory",
        "runtime/codegen/copies",
        'gone = "" if ends is None or on_device else',
        'gone = "" if True else',
    ),
    Removal(
        "a computation lets go of memory that it waited for",
        "runtime/codegen/copies",
        "self._pop(ends)\n\n    def wait_for",
        "pass\n\n    def wait_for",
    ),
    Removal(
        "a prefetch lets go of memory that it waited for",
        "runtime/codegen/copies",
        "self._pop(ends)\n\n    def _to_host",
        "pass\n\n    def _to_host",
    ),
    Removal(
        "a pending delete keeps the memory",
        "runtime/codegen/copies",
        "if key in self.iteration.pending:",
        "if False:",
    ),
    Removal(
        "a pending delete at the end keeps the memory",
        "runtime/codegen/iteration",
        'self.lines.append(f"leaving[{key}] = ({tuple_of(names)})")',
    ),
    Removal(
        "a late block is opened by its job",
        "runtime/codegen/copies",
        "late = step in self.iteration.late",
        "late = False",
    ),
    Removal(
        "the loss and gradients wait for their copies",
        "runtime/codegen/iteration",
        "self.wait_for(producers)",
    ),
    Removal(
        "a result on the host is waited for",
        "runtime/codegen/iteration",
        'self.lines.extend(f"{self.ticket(step)}.wait()" for step in self.due(producers))',
    ),
    # ── the rehearsal ──
    Removal(
        "a copy that is refreshed waits for its users",
        "runtime/codegen/dry_run",
        "            self._wait_for_users((target, x), queue)",
        "            pass",
    ),
    Removal(
        "what is changed in place waits for its users",
        "runtime/codegen/dry_run",
        "            self._wait_for_users((Memory.PEERS if x in on_peers else memory, x), queue)",
        "            pass",
    ),
    Removal(
        "host memory waits for the gate",
        "runtime/codegen/dry_run",
        "                self._wait(self._gate)",
        "                pass",
    ),
    Removal(
        "the workspace on the CPU is a gate",
        "runtime/codegen/dry_run",
        "            if workspace:\n                self._gate = self.step",
        "            pass",
    ),
    Removal(
        "memory that the CPU uses is a gate",
        "runtime/codegen/dry_run",
        "            self._gate = max(users[Queue.CPU], self._gate or users[Queue.CPU])",
        "            pass",
    ),
    Removal(
        "an allocation waits for what its room waits for",
        "runtime/codegen/dry_run",
        "            self._ends[self.step].transfers.extend(waits[earlier_waits:])",
        "            pass",
    ),
    Removal(
        "an allocation that waits is a gate",
        "runtime/codegen/dry_run",
        "            self._gate = self.step\n\n    def _end(",
        "\n    def _end(",
    ),
    Removal(
        "uses go on into the next turn",
        "runtime/codegen/dry_run",
        "self._users = {copy: users for copy, users in moved.items() if users}",
        "self._users = {}",
    ),
    Removal(
        "an allocation on the host is late",
        "runtime/codegen/dry_run",
        "            self._late.add(self.step)",
        "            pass",
    ),
    # ── from turn to turn ──
    Removal(
        "a turn waits for the turn before the last",
        "runtime/run/cycle",
        "        for ticket in self._last.values():\n            ticket.wait()",
        "",
    ),
    Removal(
        "who puts or gets a tensor waits for all jobs",
        "runtime/run/cycle",
        "if (error := next(filter(None, errors), None)) is not None:",
        "if (error := None) is not None:",
    ),
    Removal(
        "what is put on the host is there",
        "runtime/run/cycle",
        "        offload(self.device, bytes_, block)\n        self.device.synchronize()",
        "        offload(self.device, bytes_, block)",
    ),
    Removal(
        "a failed iteration waits for its jobs",
        "runtime/run/recovery",
        "                self._cycle.end_jobs()  # they may still copy from and to what the frames hold",
        "                pass",
    ),
)


def main() -> int:
    given = sys.argv[1:]
    schedules = int(given[0]) if given else 200
    chosen = [removal for removal in REMOVALS if " ".join(given[1:]) in removal.name]
    if not (whole := in_a_process_of_its_own(None, 0)).startswith("nothing"):
        print(f"with all waits: {whole}")
        return 1
    survived = 0
    print(
        "| wait that is taken out | file | what was noticed | by the schedule |\n|---|---|---|---|",
        flush=True,
    )
    for removal in chosen:
        noticed = in_a_process_of_its_own(removal, schedules)
        survived += noticed.startswith("nothing")
        print(f"| {removal.name} | {removal.file} | {noticed} |", flush=True)
    print(f"\n{len(chosen)} removals, {survived} not noticed in {schedules} schedules")
    return 1 if survived else 0


def in_a_process_of_its_own(removal: Removal | None, schedules: int) -> str:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        try:
            answer = one(removal, schedules)
        except BaseException as error:
            answer = f"an error outside: {error!r} | 0"
        os.write(writer, answer.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    return answer or "the process died | "


def without(removal: Removal) -> None:
    """From now on the file is loaded so."""
    loader, path = importlib.machinery.SourceFileLoader, ROOT / "memplan" / f"{removal.file}.py"
    whole = loader.get_code

    def get_code(self: importlib.machinery.SourceFileLoader, fullname: str) -> CodeType | None:
        if Path(self.path).resolve() != path:
            return whole(self, fullname)
        source = path.read_text()
        if source.count(removal.line) != 1:
            raise ValueError(f"{removal.line!r} stands {source.count(removal.line)} times in {path}")
        return compile(source.replace(removal.line, removal.instead), path, "exec")

    loader.get_code = get_code


def one(removal: Removal | None, schedules: int) -> str:
    """What noticed, and where."""
    if removal is not None:
        without(removal)
    from hostile import FAULTS, NETS, check, check_fault, net_of
    from waits import WAITS, check_wait

    kinds = list(FAULTS)
    runs = [(f"by hand: {name}", partial(check_wait, name)) for name in WAITS]
    runs += [
        (f"fault {seed}", partial(check_fault, *net_of(seed), seed, kinds[seed % len(kinds)]))
        for seed in FAULT_SEEDS
    ]
    runs += [
        (f"random {number + 1}", partial(check, *NETS[number % 3], number // 3))
        for number in range(schedules)
    ]
    found: list[str] = []

    def attempt(run: Callable[[], object]) -> None:
        try:
            run()
        except BaseException as error:
            found.append(f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}")

    for name, run in runs:
        thread = Thread(target=attempt, args=(run,), daemon=True)
        thread.start()
        if not ended(thread):
            return f"no end | {name}"
        if found:
            return f"{found[0][:120].replace('|', '/')} | {name}"
    return f"nothing | {schedules}"


def ended(thread: Thread) -> bool:
    """Whether it does; it does not where the process has not computed for a while."""
    while True:
        before = time.process_time()
        thread.join(PATIENCE_SECONDS)
        if not thread.is_alive():
            return True
        if time.process_time() - before < 0.01:
            return False


if __name__ == "__main__":
    torch.set_num_threads(1)
    start = time.perf_counter()
    code = main()
    print(f"{time.perf_counter() - start:.0f} s")
    sys.exit(code)
