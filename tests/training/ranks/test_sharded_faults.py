"""Sharded training when one of three ranks raises, dies or hangs: the others end with one line about it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from datetime import timedelta
from functools import partial
from math import prod
from pathlib import Path
from threading import Thread
from time import perf_counter
from typing import Any, cast

import memplan
import pytest
import torch
from failing_operations import FailingAt, enter_faults, faulty
from memplan import version
from memplan.devices.sharded import signs, store
from memplan.devices.sharded.arrival import Meeting
from memplan.devices.sharded.ranks import Ranks
from memplan.runtime.run.cycle import LOST_AMONG_RANKS
from memplan.training.ranks.together import end_groups
from ranks import ranks
from sharded_training import Size, mesh_of
from torch import Tensor, nn
from torch import distributed as dist

pytestmark = pytest.mark.scripts

SIZE, LOST = 3, 1
STOPPED = 15
"""Seconds after which a stopped rank is killed."""
LIVES = 6.0
"""Seconds for which a rank lives on after its error."""
HANGS = 25.0
"""Seconds for which a rank hangs; collectives wait for fewer."""


def model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 3))


def squares(output: Tensor) -> Tensor:
    return output.square().mean()


def train(rank: int, fault: str, size: Size) -> tuple[str, float]:
    """Train until the fault, and return the error with the seconds from then on."""
    module = model()
    optimizer = torch.optim.AdamW(module.parameters())
    x = torch.randn(8, 6)
    step = memplan.optimize(
        module,
        x,
        loss_fn=squares,
        budget="100%",
        solver="joint",
        time_limit=0.3,
        optimizer=optimizer,
        shard=mesh_of(size),
        cache=False,
    )
    step(x)
    scatter = Ranks.scatter
    calls = 0

    def fails(self: Ranks, pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
        nonlocal calls
        calls += 1
        if calls == 2 and fault == "raises":
            raise OSError("no room on the device")
        if calls == 2 and fault == "dies":
            os._exit(3)
        if calls == 2 and fault == "hangs":
            time.sleep(HANGS)
        scatter(self, pairs)

    if rank == LOST and fault == "uncaught":
        raised = OSError("sample 17\nis damaged")
        sys.last_value = raised  # as the interpreter does before the program ends
        end_groups()
        return str(raised), 0.0
    if rank == LOST and fault in ("raises", "dies", "hangs"):
        Ranks.scatter = fails
    begun = perf_counter()
    try:
        if fault.startswith("no memory"):
            if rank == LOST:
                enter_faults(setattr)
                FailingAt.now = WithoutMemory()
            with faulty() if fault == "no memory to plan" else nullcontext():
                (step.evaluate if fault == "no memory to plan" else step)(x)
        if rank == LOST and fault == "other form":
            step(x[:4])
        if rank == LOST and fault == "saves":
            step.save("nothing is written")
        step(x)
    except (memplan.MemplanError, OSError) as error:
        return "; ".join([str(error), *getattr(error, "__notes__", ())]), perf_counter() - begun
    except RuntimeError:
        time.sleep(LIVES)  # the program has caught its error, and goes on
    return "nothing", 0.0


class WithoutMemory(FailingAt):
    """Operations of which the fifth finds no memory for its result."""

    def __init__(self) -> None:
        super().__init__(5)

    def _fail(self) -> None:
        torch.empty(2**60, dtype=torch.uint8)


def lines(folder: Path, fault: str, timeout: float = 150, size: Size = SIZE) -> list[str]:
    """Return what the other ranks say, all within 30 s."""
    count = size if isinstance(size, int) else prod(size)
    found = ranks(train, folder, fault, size, size=count, timeout=timeout)
    others: list[Any] = [each for rank, each in enumerate(found) if rank != LOST]
    assert all(isinstance(each, tuple) for each in others), found
    assert all(seconds < 30 for _line, seconds in others), found
    return [line for line, _seconds in others]


def test_a_rank_that_raises_is_named_with_its_error(tmp_path: Path) -> None:
    first, own, last = ranks(train, tmp_path, "raises", SIZE, size=SIZE)
    line = "rank 1 of 3 has failed: no room on the device; start all ranks anew, from a checkpoint"
    assert first[0] == last[0] == line
    assert own[0] == f"no room on the device; {LOST_AMONG_RANKS}"


@pytest.mark.parametrize("call", ["", " to plan"])
def test_a_rank_without_memory_is_named_at_once(tmp_path: Path, call: str) -> None:
    """An operation of this rank alone fails; its program catches the error."""
    begun, found = (
        "rank 1 of 2 has failed: DefaultCPUAllocator: ",
        ranks(train, tmp_path, f"no memory{call}", 2),
    )
    line, seconds = found[0]
    assert line.startswith(begun)
    assert seconds < LIVES / 2


def test_a_rank_that_dies_is_named(tmp_path: Path) -> None:
    line = "rank 1 of 3 ended without an error: killed, or out of memory, or its program ended"
    assert [each.startswith(line) for each in lines(tmp_path, "dies")] == [True, True]


def test_a_rank_that_hangs_is_named_after_the_timeout(tmp_path: Path) -> None:
    found = ranks(train, tmp_path, "hangs", SIZE, size=SIZE, timeout=4)
    line = "rank 1 of 3 did not come to a collective within 4 s: it hangs, or waits; start all ranks anew"
    assert [found[rank][0].startswith(line) and found[rank][1] < 30 for rank in (0, 2)] == [True, True]
    late = (
        f"this rank came to a collective {HANGS:.0f} s after its last one, and the others wait for 4 s: they"
    )
    assert found[LOST][0].startswith(f"{late} have given up; start all ranks anew")


def test_the_error_that_ends_a_program_is_named(tmp_path: Path) -> None:
    """It is raised between iterations, as in a data loader, and nothing catches it."""
    line = "rank 1 of 3 has failed: sample 17 is damaged; start all ranks anew, from a checkpoint"
    assert lines(tmp_path, "uncaught") == [line, line]


def test_a_rank_that_saves_while_the_others_train_is_named(tmp_path: Path) -> None:
    line = "rank 1 of 3 calls step.save, and not all ranks do: call it on all ranks together, or on none"
    assert lines(tmp_path, "saves") == [line, line]


def test_a_rank_that_is_stopped_while_it_plans_is_named(tmp_path: Path) -> None:
    """Others wait hours for a rank that plans, and for a silent one the timeout of the group."""
    found = ranks(stopped, tmp_path, size=SIZE, timeout=4)
    line = "rank 1 of 3 gave no sign of life for 4 s: it hangs, or is stopped; start all ranks anew"
    others = [str(each) for rank, each in enumerate(found) if rank != LOST]
    assert [each.startswith(line) for each in others] == [True, True], found


def stopped(rank: int) -> None:
    """Plan for as long as a rank is stopped, which others then find silent."""
    signs._SILENCE, signs._PATIENCE, signs._BEAT = 0.0, 4.0, 0.5  # pyright: ignore[reportPrivateUsage]
    made = Ranks(True, torch.device("cpu"))
    with made.beating():
        made.together(stop if rank == LOST else lambda: None)


def test_waits_for_a_stopped_rank_end_with_another_collective(tmp_path: Path) -> None:
    """A collective ends at its timeout. Its thread can't end a group in which another one waits."""
    # Which wait ends first is the machine's: each says what it knows of the rank.
    line = re.compile(r"rank 1 of 3 (did not come to a collective within|gave no sign of life|ended without)")
    others = [
        each for rank, each in enumerate(ranks(waiting, tmp_path, size=SIZE, timeout=3)) if rank != LOST
    ]
    assert all(each is not None and line.match(each[0]) and each[1] < STOPPED - 3 for each in others), others


def waiting(rank: int) -> tuple[str, float] | None:
    """Gather in one thread and wait in another while a rank is stopped; return what is raised, and when."""
    signs._PATIENCE, signs._BEAT = 3.0, 0.5  # pyright: ignore[reportPrivateUsage]
    made, begun = Ranks(True, torch.device("cpu")), perf_counter()
    if rank == LOST:
        stop()
        return None

    def gather() -> None:
        with suppress(memplan.MemplanError):
            made.gather([(torch.zeros(1), torch.zeros(SIZE))])

    thread = Thread(target=gather)
    thread.start()
    try:
        with made.beating():
            made.gathered(None)
    except memplan.MemplanError as error:
        thread.join()
        return str(error), perf_counter() - begun
    return None


def stop() -> None:
    """Stop this process, which another one kills later."""
    subprocess.Popen(["sh", "-c", f"sleep {STOPPED}; kill -KILL {os.getpid()}"])
    os.kill(os.getpid(), signal.SIGSTOP)


def test_a_rank_of_another_version_is_named(tmp_path: Path) -> None:
    own = f"rank 0 has memplan {version.__version__} and torch {torch.__version__}"
    line = f"{own}, rank 1 memplan 0.0.1 and torch {torch.__version__}: install the same on all nodes"
    assert ranks(of_another_version, tmp_path) == [line, line]


def of_another_version(rank: int) -> None:
    if rank:
        version.__version__ = "0.0.1"
    Ranks(True, torch.device("cpu"))


def test_a_rank_with_a_batch_of_another_form_is_named(tmp_path: Path) -> None:
    line = "ranks 0 and 1 have batches of different forms, 0 float32 [8, 6] and 0 float32 [4, 6]: give all"
    assert [each.startswith(line) for each in lines(tmp_path, "other form")] == [True, True]


@pytest.mark.parametrize(
    ("fault", "line"),
    [
        ("raises", "rank 1 of 4 has failed: no room on the device; start all ranks anew"),
        ("dies", "rank 1 of 4 ended without an error: killed, or out of memory, or its program ended"),
        ("hangs", "rank 1 of 4 did not come to a collective within 4 s: it hangs, or waits; start"),
        ("other form", "ranks 0 and 1 have batches of different forms, 0 float32 [8, 6] and 0 float32 [4"),
    ],
)
def test_a_rank_of_another_replica_is_named_too(tmp_path: Path, fault: str, line: str) -> None:
    """Ranks 2 and 3 are the other replica: only rank 3 has collectives of gradients with rank 1."""
    found = lines(tmp_path, fault, timeout=4 if fault == "hangs" else 150, size=(2, 2))
    assert [each.startswith(line) for each in found] == [True] * 3, found


def too_small(_rank: int) -> tuple[int, str]:
    module = model()
    chosen: dict[str, Any] = {"optimizer": torch.optim.AdamW(module.parameters()), "loss_fn": squares}
    with pytest.raises(memplan.InfeasibleError) as refused:
        memplan.optimize(module, torch.randn(8, 6), budget="1%", shard=True, cache=False, **chosen)
    return refused.value.min_memory, str(refused.value)


def test_a_budget_that_is_too_small_is_infeasible_on_all_ranks(tmp_path: Path) -> None:
    """Rank 0 alone solves. A loop that tries another budget then does so on all ranks."""
    (least, line), (other, line_there) = ranks(too_small, tmp_path)
    assert least == other > 0
    assert line.startswith("no schedule within ")
    assert line_there == f"rank 0 of 2 has no plan: {line}"


DIFFERENT: dict[str, dict[str, Any]] = {
    "gradient_accumulation_steps=": {"gradient_accumulation_steps": 2},
    "max_grad_norm=": {"max_grad_norm": 2.0},
    "budget=": {"budget": "90%"},
    "autocast=": {"autocast": torch.bfloat16},
    "optimizer=": {"optimizer": torch.optim.SGD},
    "the optimizer's settings": {"optimizer": partial(torch.optim.AdamW, lr=0.5)},
    "requires_grad of 0.weight": {"frozen": True},
    "the dtype of 0.weight": {"dtype": torch.float64},
    "the mesh of shard=, of 1 × 2 and 2 × 1 ranks": {"shard": (2, 1)},
}


def different(rank: int) -> list[str]:
    found = list[str]()
    for each in DIFFERENT.values():
        given = {"max_grad_norm": 1.0, "budget": "100%", "shard": True, **(each if rank else {})}
        module, make_optimizer = model(), given.pop("optimizer", torch.optim.AdamW)
        cast(nn.Sequential, module)[0].requires_grad_(not given.pop("frozen", False)).to(
            given.pop("dtype", None)
        )
        shard = given.pop("shard")
        given |= {"shard": shard if shard is True else mesh_of(shard), "cache": False}
        optimizer = make_optimizer(module.parameters())
        with pytest.raises(memplan.MismatchError) as refused:
            memplan.optimize(module, torch.randn(8, 6), loss_fn=squares, optimizer=optimizer, **given)
        found.append(str(refused.value))
    return found


def test_what_differs_between_ranks_is_named(tmp_path: Path) -> None:
    for found in ranks(different, tmp_path, timeout=20):
        for name, line in zip(DIFFERENT, found, strict=True):
            assert line.startswith(f"ranks 0 and 1 differ in {name}: "), line


KILLED = (
    "rank 1 has ended, or left the process group, before it came to memplan.optimize: killed, out of "
    "memory, or by an error that its own output shows"
)


def come_late(rank: int, fault: str) -> tuple[str, float]:
    """Plan on rank 0 alone: the other has ended, by an error or without one, or does other things."""
    if rank and fault != "absent":
        if fault == "is killed there":
            Thread(target=Ranks, args=(True, torch.device("cpu")), daemon=True).start()
            time.sleep(2)
        if fault.startswith("is killed"):
            os.kill(os.getpid(), signal.SIGKILL)
        if fault == "raises":
            sys.last_value = OSError("no such\nfile")  # as the interpreter does before the program ends
        end_groups()
    if rank:
        time.sleep(LIVES)
        return "", 0.0
    if fault == "is killed there":
        time.sleep(3)
    begun, module = perf_counter(), model()
    try:
        memplan.optimize(
            module,
            torch.randn(8, 6),
            loss_fn=squares,
            budget="100%",
            optimizer=torch.optim.AdamW(module.parameters()),
            shard=True,
        )
    except memplan.MemplanError as error:
        return str(error), perf_counter() - begun
    return "planned", 0.0


@pytest.mark.parametrize(
    ("fault", "line"),
    [
        ("raises", "rank 1 has ended before it came to memplan.optimize: no such file"),
        ("ends", "rank 1 has ended before it came to memplan.optimize; call it on all ranks at once"),
        (
            "absent",
            "rank 1 did not come to memplan.optimize within 3 s: it hangs, is still at something else, or "
            "does not call it",
        ),
        ("is killed", KILLED),
        ("is killed there", KILLED),
    ],
)
def test_a_rank_that_never_comes_is_named(tmp_path: Path, fault: str, line: str) -> None:
    text, seconds = ranks(come_late, tmp_path, fault, timeout=3 if fault == "absent" else 150)[0]
    assert text == line
    assert seconds < LIVES


def killed_in_a_group(rank: int, folder: str, backend: str) -> tuple[str, float, str]:
    """Wait on rank 0 alone, in a default group of this backend: the other is killed before."""
    dist.destroy_process_group()
    timeout = timedelta(seconds=4)
    dist.init_process_group(backend, f"file://{folder}/again", timeout=timeout, rank=rank, world_size=2)
    if rank:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(memplan.MemplanError) as refused:
        memplan.optimize(model(), torch.randn(8, 6), loss_fn=squares, budget="100%", shard=True)
    begun = perf_counter()
    with pytest.raises(memplan.MemplanError) as lost:
        Meeting(store.SharedStore("memplan/here"), [0, 1], timeout, 99).wait()
    return str(lost.value), perf_counter() - begun, str(refused.value)


UNWATCHED = (
    "rank 1 did not come to memplan.optimize within 4 s: it hangs, is still at something else, or does not "
    "call it, or was killed, which the others know at once by init_process_group("
    '"cpu:gloo,cuda:nccl"), not by NCCL alone'
)


@pytest.mark.parametrize(("backend", "line"), [("cpu:gloo,cuda:gloo", KILLED), ("cuda:gloo", UNWATCHED)])
def test_a_killed_rank_is_known_at_once_in_default_groups_that_have_gloo(
    tmp_path: Path, backend: str, line: str
) -> None:
    """A group that has a backend for GPUs alone, as NCCL's, costs its timeout; a module on the CPU can't be
    trained in it."""
    text, seconds, refused = ranks(killed_in_a_group, tmp_path, str(tmp_path), backend)[0]
    assert text == line
    assert (seconds < 3.5) == (line == KILLED)
    other = "a process group has no backend for tensors on the cpu, where the module is: create the "
    assert refused.startswith(KILLED if line == KILLED else other)


WAITS = """
import os, signal
from datetime import timedelta
from torch import distributed as dist
from memplan.devices.sharded.arrival import Meeting
from memplan.devices.sharded.store import SharedStore

dist.init_process_group("cuda:gloo")
if dist.get_rank():
    os.kill(os.getpid(), signal.SIGKILL)
Meeting(SharedStore("memplan/here"), [0, 1], timedelta(minutes=30), 1).wait()
"""


def test_torchrun_ends_the_others_of_a_killed_rank_in_a_group_without_gloo(tmp_path: Path) -> None:
    (tmp_path / "waits.py").write_text(WAITS)
    command = ["-m", "torch.distributed.run", "--nproc-per-node=2", "--rdzv-backend=c10d"]
    command += ["--rdzv-endpoint=localhost:0", str(tmp_path / "waits.py")]
    ended = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 1
    assert "Signal 9 (SIGKILL)" in ended.stderr
    assert "Signal 15 (SIGTERM)" in ended.stderr


def test_a_store_whose_process_has_ended_says_so_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """PyTorch's client would write some twenty lines of C++ frames at each call."""
    server: Any = cast("Any", dist).TCPStore("localhost", 0, 2, is_master=True, wait_for_workers=False)
    client = cast("Any", dist).TCPStore("localhost", server.port, 2, is_master=False, wait_for_workers=False)
    monkeypatch.setattr(store, "default_store", lambda: client)
    shared = store.SharedStore("a")
    shared.set("known", "1")
    assert (shared.get("known"), shared.has("other")) == (b"1", False)
    del server
    late = store.SharedStore("b")  # its connection is refused
    for call in (partial(shared.get, "known"), partial(shared.set, "x", ""), partial(late.has, "known")):
        with pytest.raises(store.StoreLostError, match=r"rank 0, or torchrun's process .* has ended: killed"):
            call()
    assert capfd.readouterr().err == ""


OF_GROUPS = {
    signs.SilentError("no sign of life"): True,
    store.StoreLostError(): True,
    dist.DistBackendError("unhandled system error"): True,  # pyright: ignore[reportPrivateImportUsage]
    RuntimeError("[/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:34449."): True,
    RuntimeError("Application timeout caused pair closure"): True,
    torch.OutOfMemoryError("tried to allocate 2 GiB; process group"): False,
    NotImplementedError("the process group has no such collective"): False,
    RuntimeError("a tensor of rank one is expected, its storage is empty"): False,
}


@pytest.mark.parametrize("error", OF_GROUPS, ids=lambda error: type(error).__name__)
def test_an_error_of_a_group_is_known_by_its_class(error: Exception) -> None:
    """But for gloo's, whose class is RuntimeError."""
    assert signs.is_of_network(error) == OF_GROUPS[error]
