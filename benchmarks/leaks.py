"""Measure the objects and bytes that `optimize` leaves in the process, per call.

Protocol: each kind of call runs in a process of its own. The first calls fill caches of PyTorch, Python and
memplan and are not counted. Objects are those that Python's garbage collector knows, by type, after a
collection. Bytes are those allocated and not freed: all of Python's memory is taken from the C library
(PYTHONMALLOC=malloc), whose `mallinfo2` counts them. The resident set is not used, since fragments of freed
memory let it grow by less and less per call. Exit code 1 if any kind keeps an object or 10 kB per call.

    python benchmarks/leaks.py [--kinds NAME…] [--warm-up 10] [--calls 50]
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import importlib
import json
import os
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from tempfile import TemporaryDirectory
from time import monotonic, sleep
from types import BuiltinFunctionType
from typing import Any
from weakref import ReferenceType

import memplan
import torch
from memplan.graphs.machine import Links, Machine
from torch import Tensor, nn

MOST_BYTES = 10_000
QUIET_LOOKS, LOOK_SECONDS = 4, 0.5
MACHINE = Machine(host_capacity=2**24, links=Links(d2h=1e9, h2d=1e9))
ENVIRONMENT = {
    "PYTHONMALLOC": "malloc",
    "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0",  # freed blocks of a thread's cache count as in use
    "OMP_NUM_THREADS": "1",
}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16)) for _ in range(2)
        )

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return x.square().mean()


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(16))

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(4):
            x = torch.tanh(x * self.scale)
        return x.square().mean()


class Branching(Net):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (2.0 if x.sum().item() > 0 else 1.0)


def batch(rows: int = 64) -> Tensor:
    return torch.randn(rows, 16, generator=torch.Generator().manual_seed(rows))


def planned(module: nn.Module, **options: Any) -> Any:
    return memplan.optimize(
        module,
        batch(),
        **{"budget": "85%", "cache": False, "verify": False, "solver": "rotor", "time_limit": 1, **options},
    )


def backward() -> None:
    planned(Net())(batch()).backward()


def by_auto() -> None:
    planned(Net(), solver="auto")(batch()).backward()


def compared() -> None:
    planned(Net(), verify=True)(batch()).backward()


def updates() -> None:
    module = Net()
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.01, foreach=False)
    step = planned(module, optimizer=optimizer)
    for _ in range(2):
        step(batch())


def undo() -> None:
    module = Net()
    step = planned(module, optimizer=torch.optim.SGD(module.parameters(), 0.01), rollback_on_error=True)
    step(batch())


def evaluation() -> None:
    step = planned(Net())
    step.evaluate(batch())
    step(batch()).backward()


def offloaded() -> None:
    step = planned(Net(), solver="auto", machine=MACHINE)
    step(batch()).backward()
    step.restore_to_device()


def refused_budget() -> None:
    with suppress(memplan.MemplanError):
        planned(Net(), budget=1000)


def refused_trace() -> None:
    with suppress(memplan.MemplanError):
        planned(Branching())


def other_shapes() -> None:
    step = planned(Net())
    for rows in (64, 48, 32):
        step(batch(rows)).backward()


ROWS = count(33)


def new_shapes() -> None:
    """Plan for a batch of a shape that was never met before. Without products of matrices: oneDNN keeps code
    for each of their shapes, 65 kB for this `Net`, in eager PyTorch too."""
    step = planned(Scaled(), budget="16MB")
    step(batch(next(ROWS))).backward()


LASTING = Net()


def one_module() -> None:
    """Plan a module that stays."""
    planned(LASTING)(batch()).backward()
    LASTING.zero_grad()


FOLDER = TemporaryDirectory()


def cached() -> None:
    """Take the plan from the cache on disk, from the second call on."""
    planned(Net(), cache=FOLDER.name, verify=None)(batch()).backward()


def failing() -> None:
    """Fail in an iteration."""
    module = Net()
    step = planned(module)
    step(batch()).backward()
    module.layers[0] = nn.Identity()
    with suppress(memplan.MemplanError):
        step(batch())


def compiled() -> None:
    planned(Net(), compile=True)(batch()).backward()


WIDTHS = count(17)


def compiled_anew() -> None:
    """Kernels that were never compiled before, of a module of another width each time."""
    width = next(WIDTHS)
    module = nn.Sequential(nn.Linear(16, width), nn.GELU(), nn.Tanh(), nn.Linear(width, 16))
    planned(module, compile=True, loss_fn=lambda output: output.square().mean())(batch()).backward()


def all_in_turn() -> None:
    """One call of each kind that takes less than half a second."""
    for each in QUICK:
        each()


QUICK = (backward, compared, updates, undo, evaluation, refused_budget, refused_trace, new_shapes)


KINDS: dict[str, Callable[[], None]] = {
    each.__name__.replace("_", " "): each
    for each in (
        *(backward, by_auto, compared, updates, undo, evaluation, offloaded, refused_budget, refused_trace),
        *(other_shapes, new_shapes, one_module, cached, failing, compiled, compiled_anew, all_in_turn),
    )
}


SLOW = ("compiled anew", "all in turn")
"""Kinds that are measured only if they are named."""


class Mallinfo(ctypes.Structure):
    """The C library's `struct mallinfo2`."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )


MALLINFO = ctypes.CDLL(None).mallinfo2
MALLINFO.restype = Mallinfo


def allocated_bytes() -> int:
    """Return the bytes that are allocated and not freed."""
    figures = MALLINFO()
    return int(figures.uordblks + figures.hblkhd)


def in_abc_cache(thing: object) -> bool:
    """Whether the object is part of the cache of `isinstance` for abstract classes: a weak reference for each
    class asked about. Python clears it as a whole, at a moment of its own."""
    if isinstance(thing, ReferenceType):
        thing = thing.__callback__
    return isinstance(thing, BuiltinFunctionType) and thing.__name__ == "_destroy"


def count_objects() -> Counter[str]:
    return Counter(type(each).__qualname__ for each in gc.get_objects() if not in_abc_cache(each))


def settle() -> Counter[str]:
    """Wait until the threads that the last calls have left, such as those for lower bounds, have ended.
    Returns the objects of each type."""
    found, quiet, end = Counter[str](), 0, monotonic() + 60.0
    while quiet < QUIET_LOOKS and monotonic() < end:
        gc.collect()
        last, found = found, count_objects()
        quiet = quiet + 1 if found.total() == last.total() else 0
        sleep(LOOK_SECONDS)
    return found


def measure(kind: str, warm_up: int, calls: int) -> dict[str, Any]:
    """Return what `calls` calls leave: bytes, and objects by type."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    importlib.import_module(
        "torch._dynamo"
    )  # with PyTorch's compiler, which models may use, more could be kept
    for _ in range(warm_up):
        KINDS[kind]()
    objects, before = settle(), allocated_bytes()
    for _ in range(calls):
        KINDS[kind]()
    found, after = settle(), allocated_bytes()
    return {"bytes": after - before, "objects": dict(found - objects)}


def measure_apart(kind: str, warm_up: int, calls: int) -> dict[str, Any]:
    """Measure in a process of its own."""
    command = [sys.executable, __file__, "--one", kind, "--warm-up", str(warm_up), "--calls", str(calls)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--kinds", nargs="+", choices=KINDS, default=[kind for kind in KINDS if kind != "all in turn"]
    )
    parser.add_argument("--warm-up", type=int, default=10)
    parser.add_argument("--calls", type=int, default=50)
    parser.add_argument("--one", choices=KINDS, help="measure in this process and print JSON")
    given = parser.parse_args()
    if given.one:
        if not os.environ.items() >= ENVIRONMENT.items():  # which counts when the process begins
            os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | ENVIRONMENT)
        print(json.dumps(measure(given.one, given.warm_up, given.calls)))
        return
    kept = False
    print("| kind | objects per call | bytes per call | types |\n|---|---:|---:|---|")
    for kind in given.kinds:
        found = measure_apart(kind, given.warm_up, given.calls)
        objects = sum(found["objects"].values()) / given.calls
        types = ", ".join(f"{name} {number}" for name, number in found["objects"].items())
        print(f"| {kind} | {objects:.2f} | {found['bytes'] / given.calls:,.0f} | {types} |", flush=True)
        kept |= objects >= 1 or found["bytes"] >= MOST_BYTES * given.calls
    sys.exit(kept)


if __name__ == "__main__":
    main()
