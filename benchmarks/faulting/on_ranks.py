"""One training on two ranks over gloo, in which one of them comes to be other than planned.

Each rank computes on the CPU; what its plan offloads is in memory that PyTorch's allocator does not count.
Times are of this machine, or counted (counted_ranks.py).
"""

from __future__ import annotations

import pickle
import sys
import warnings
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from failing_operations import FailingAt, enter_faults
from memplan.devices.measuring.live_bytes import live_peak
from memplan.graphs.errors import MemplanError
from memplan.profiling.compare.peaks import generator_bytes
from memplan.runtime.run.recovery import Recovery
from memplan.torch_support.out_of_memory import is_out_of_memory
from memplan.training.plans import adapt_on_ranks, training_log
from memplan.training.ranks.together import end_groups
from ranks import RANKS, ranks
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from .counted_ranks import CountedRank
from .models import MODELS, State, adamw, made, state_of
from .rank_kinds import PLANNED, RANK_KINDS, May, RankKind, killed, other_shape
from .rank_trial import DDP, FSDP, RankTrial, batch_at
from .run import SHORT, WRONG, Row, same

BUDGETS = {DDP: "75%", FSDP: "70%"}

COUNTED = 24
"""Iterations whose memory is counted; a fault comes before the last of them."""

HEADER = 2**7
"""Bytes of a message between ranks in addition to its objects: their sizes."""

TIMEOUT, PATIENCE, LIMIT = 60.0, 30.0, 120.0
"""Seconds that collectives wait, in which ranks must end after a fault that ends them, and in which they plan
and train, but for a second per iteration.
"""

WORDS = {May.GO_ON: "goes on", May.REPLAN: "goes on, replans", May.END: "ends", May.REFUSE: "refuses"}


class Ending(NamedTuple):
    """The end of one rank's training.

    turns: iterations that it trained. error: "" if there was none. seconds: from the fault on.
    faults: what is wrong. refused: lines of calls after which it went on. as_fast: the first plan takes about
    as long as it did, by the simulator. schedule: a checksum of the last plan's.
    """

    turns: int
    error: str
    seconds: float
    said: list[str]
    faults: list[str]
    refused: list[str]
    share: float | None = None
    as_fast: bool = True
    schedule: int = 0


def eager(
    way: str, model: str, rank: int, iterations: int, halved: tuple[int, int] | None, folder: str
) -> tuple[list[Tensor], list[State]]:
    """Return losses, and states before each iteration and after the last, of training by eager PyTorch.

    All ranks call it together; what they have found is in the folder for the next time.

    halved: an iteration with a smaller batch, and the rank that has it.
    """
    file = Path(folder) / f"{way}-{model}-{iterations}-{halved}-{rank}.pt"
    if file.exists():
        return torch.load(file, weights_only=False)
    module, batches = made(model, rank)
    called: nn.Module = module
    if way == FSDP:
        fully_shard(module, mesh=init_device_mesh("cpu", (RANKS,)))
    else:
        called = DistributedDataParallel(module)
    optimizer = adamw(module)
    losses, states = list[Tensor](), [state_of(module, optimizer)]
    smaller = None if halved is None or halved[1] != rank else halved[0]
    for turn in range(iterations):
        torch.manual_seed(RANKS * turn + rank)
        loss = MODELS[model].loss(called, batch_at(batches, turn, smaller))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        states.append(state_of(module, optimizer))
    torch.save((losses, states), file)
    return losses, states


def train(rank: int, name: str, way: str, model: str, seed: int, iterations: int, folder: str) -> Ending:
    """Train on one rank. The fault comes on the kind's rank."""
    kind, both = RANK_KINDS[name], Random(f"{name} {way} {model} {seed}")
    begin = 3 if iterations <= SHORT else both.randrange(8, 18)
    # A plan for a smaller batch may need more: convolutions choose their workspaces by shape.
    budget = "100%" if kind.fault is other_shape else BUDGETS[way]
    trial = RankTrial(rank, way, model, Random(both.random() + rank), budget)
    halved = (begin, kind.at) if kind.fault is other_shape and way == DDP else None
    known = eager(way, model, rank, iterations, halved, folder)
    enter_faults(_in_iterations)
    warnings.simplefilter("always")
    warnings.showwarning = lambda message, *_, **_named: trial.said.append(f"{message}")
    with ExitStack() as machine, ExitStack() as faults:
        if kind.counted:
            trial.counted = CountedRank()
            machine.enter_context(trial.counted.entered())
        if iterations <= SHORT:
            machine.enter_context(patch.object(training_log, "ENOUGH", 4))
            machine.enter_context(patch.object(adapt_on_ranks, "EVERY", 3))
        if kind.before or kind.disk:
            trial.needed, _ = _needs(trial)
        if kind.disk:
            assert trial.counted is not None
            trial.counted.disk, trial.counted.host_bytes = True, trial.needed // 2
            _, trial.needed_disk = _needs(trial) if kind.before else (0, 0)
        if kind.before and rank == kind.at:
            faults.enter_context(kind.fault(trial))
        return Run(kind, trial, faults, begin, iterations, known).ending()


def _needs(trial: RankTrial) -> tuple[int, int]:
    """Return the bytes of a plan on the host and on the disk, by planning once."""
    once = replace(trial, said=[])
    once.plan()
    figures = once.step.plan.figures
    return figures.host_peak, figures.disk_peak


def _in_iterations(owner: Any, name: str, value: Any) -> None:
    """Replace what surrounds a plan's iterations, and not what comes before them."""
    if owner is Recovery:
        setattr(owner, name, value)


@dataclass
class Run:
    """A rank's iterations, and what becomes of them.

    began: when the fault came. messages: bytes of the messages between the ranks.
    """

    kind: RankKind
    trial: RankTrial
    faults: ExitStack
    begin: int
    iterations: int
    known: tuple[list[Tensor], list[State]]
    began: float = 0.0
    messages: int = 0
    wrong: list[str] = field(default_factory=list[str])
    refused: list[str] = field(default_factory=list[str])

    def ending(self) -> Ending:
        trial, error, seen = self.trial, "", dict[str, Any]()
        try:
            trial.plan()
        except MemplanError as refusal:
            return Ending(0, "", 0.0, trial.said, [], [f"{refusal}"])
        try:
            with self._messages_measured():
                peak = live_peak(partial(self._until, self._counted())).peak_bytes + trial.held()
            outside = self.messages + generator_bytes(trial.step.plans[0].program)
            if peak > trial.limit + trial.on_cpu() + outside:
                self.wrong.append(f"{peak:,} bytes, the budget is {trial.limit:,}")
            self._until(self.iterations)
        except BaseException as raised:
            error = self._ended(raised)
        seconds = perf_counter() - self.began
        if not error:
            self._compare([trial.turn], set())
            if self.kind.compares:
                seen = trial.seen()
            elif self.kind.says == PLANNED and self.iterations > SHORT:
                seen["share"] = trial.share() if trial.counted is None else trial.seen()["share"]
        return Ending(trial.turn, error, seconds, trial.said, self.wrong, self.refused, **seen)

    @contextmanager
    def _messages_measured(self) -> Generator[None]:
        """Add up the bytes of messages between the ranks: on the CPU they are in the device's memory too, as
        is the state of a generator that a draw keeps.

        gloo's own thread may free them, which PyTorch's record of allocations does not see: they add up.
        """
        gather, broadcast = dist.all_gather_object, dist.broadcast_object_list

        def gathered(found: list[Any], mine: Any, **named: Any) -> None:
            gather(found, mine, **named)
            self.messages += (len(found) + 2) * max(map(_pickled, found)) + HEADER

        def sent(found: list[Any], **named: Any) -> None:
            broadcast(found, **named)
            self.messages += 2 * sum(map(_pickled, found)) + HEADER

        with patch.multiple(dist, all_gather_object=gathered, broadcast_object_list=sent):
            yield

    def _counted(self) -> int:
        """Return the iteration until which memory is counted: to plan in between takes some of its own."""
        if self.kind.counted:
            return self.iterations
        plans = self.kind.fault is other_shape and self.trial.way == DDP
        return self.begin if plans else min(COUNTED, self.iterations)

    def _until(self, end: int) -> None:
        trial, mine = self.trial, self.trial.rank == self.kind.at
        while trial.turn < end:
            if trial.turn == self.begin - 1 and mine:
                trial.count_operations()
                continue
            if trial.turn == self.begin and not self.refused:
                self.began = perf_counter()
                if mine and not self.kind.before:
                    self.faults.enter_context(self.kind.fault(trial))
            if self.kind.lasts and trial.turn == self.begin + min(self.kind.lasts, self.iterations // 2):
                self.faults.close()
            try:
                trial.iterate()
            except MemplanError as error:
                if May.REFUSE not in self.kind.fsdp or self.refused:
                    raise
                self.refused.append(f"{error}")
                self.faults.close()
        for plan in trial.step.plans:
            if plan.cycle is not None:
                plan.cycle.end_jobs()

    def _ended(self, raised: BaseException) -> str:
        """Leave the others as a program does that this error ends, and return its line."""
        FailingAt.now = None
        expected = isinstance(raised, MemplanError | KeyboardInterrupt | OSError) or is_out_of_memory(raised)
        if not expected:
            self.wrong.append(repr(raised))
        self.faults.close()
        sys.last_value = raised
        end_groups()
        # DistributedDataParallel's buffers are the first rank's as soon as an iteration begins.
        buffers = {name for name, _each in self.trial.module.named_buffers()}
        with suppress(MemplanError):  # weights may be refused until others are loaded
            self._compare([self.trial.turn, self.trial.turn + 1], buffers if self.trial.way == DDP else set())
        return "; ".join([f"{type(raised).__name__}: {raised}", *getattr(raised, "__notes__", ())])

    def _compare(self, turns: Sequence[int], without: set[str]) -> None:
        losses, states = self.known
        found, *known = (
            {name: each for name, each in state.items() if name not in without}
            for state in (self.trial.state(), *states[turns[0] : turns[-1] + 1])
        )
        if not all(map(torch.equal, self.trial.losses, losses)):
            self.wrong.append("other losses")
        if not any(same(found, each) for each in known):
            self.wrong.append("other weights")


def _pickled(thing: Any) -> int:
    return len(pickle.dumps(thing))


def run_on_ranks(kind: RankKind, way: str, model: str, seed: int, iterations: int, folder: str) -> Row:
    """Train so many iterations on two ranks, the fault among them, and check what the kind must do."""
    row = Row(f"{kind.name}, {way}", model, "")
    with TemporaryDirectory() as own:
        given = (kind.name, way, model, seed, iterations, folder)
        found = ranks(train, Path(own), *given, timeout=TIMEOUT, limit=LIMIT + iterations)
    for rank, each in enumerate(found):
        if isinstance(each, str):
            return row._replace(outcome=f"{WRONG}rank {rank}: {' '.join(each.split())}")
    allowed, dies = kind.ddp if way == DDP else kind.fsdp, kind.fault is killed
    endings: list[Ending] = [each for each in found if each is not None]
    wrong = [line for each in endings for line in each.faults]
    if (found[kind.at] is None) != dies or len(endings) + dies != RANKS:
        wrong.append(f"a rank has no ending: {found}")
    refused, said = [x for each in endings for x in each.refused], [x for each in endings for x in each.said]
    errors = [each.error for each in endings if each.error]
    line = next((text for text in (*refused, *said) if kind.says and kind.says in text), "")
    if kind.compares:
        wrong += _unnamed(kind, endings, way)
    shares = [each.share for each in endings if each.share is not None]
    line = line or next(iter(refused), "")
    outcome = May.END if errors else May.REFUSE if refused else May.GO_ON
    if outcome == May.GO_ON and kind.says and any(kind.says in text for text in said):
        outcome = May.REPLAN
    if outcome not in allowed:
        wrong.append(f"it {outcome.name}, not {allowed}")
    if outcome == May.REFUSE and not all(kind.refusal in text for text in refused):
        wrong.append(f"the line says something else: {refused[0]}")
    if outcome == May.END:
        other = found[1 - kind.at]
        if other is None or kind.named.format(at=kind.at) not in other.error:
            wrong.append("the other rank does not name it")
        if any(each.seconds > PATIENCE for each in endings):
            wrong.append("a rank waits for long")
        line = "" if other is None else other.error
    share = max(shares, default=None)
    # A plan whose times are not off by 10 % is kept: how far solvers come in a second is all that differs.
    replanned = outcome == May.REPLAN and iterations > SHORT
    if share is not None and share > 1.1 and replanned:
        wrong.append("slower than a fresh plan")
    words = WORDS[outcome]
    return row._replace(outcome=WRONG + ", ".join(wrong) if wrong else words, line=line, share=share)


def _unnamed(kind: RankKind, endings: Sequence[Ending], way: str) -> list[str]:
    """Return what is wrong with trainings by counted times: all ranks name the slow one, or none needs to."""
    wrong = list[str]()
    named = [any(kind.says in text for text in each.said) for each in endings]
    if any(named) != all(named):
        wrong.append("not all ranks name it")
    if kind.says and not any(named) and not all(each.as_fast for each in endings):
        wrong.append("no rank names it")
    if way == FSDP and len({each.schedule for each in endings}) > 1:
        wrong.append("the ranks run different plans")
    return wrong
