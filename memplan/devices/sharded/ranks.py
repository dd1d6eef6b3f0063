"""The ranks of sharded data parallelism: the groups that they communicate over.

The groups are separate from the user's, so that collectives of an iteration that are still under way never
come between those of the user's code. All ranks must create theirs together.
"""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from itertools import count
from platform import node
from threading import Lock
from time import perf_counter
from traceback import clear_frames
from typing import Any, TypeVar

import torch
from memplan import version
from torch import Tensor
from torch import distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Placement

from ...graphs.errors import InputError, MemplanError, MismatchError
from ...torch_support.torch_collectives import name_of_group, new_group, ranks_of_group
from ...torch_support.torch_processes import timeout_of
from ..device.choice import device_of
from .arrival import Meeting
from .communicator import Communicator, opened, unowned
from .meshes import PLACEMENTS, Mesh, RankGroups, default_group, rank_groups
from .signs import Signs, SilentError, is_of_network, keep, line_of
from .store import SharedStore

_PLANNING = timedelta(hours=6)
"""For how long ranks wait for a plan."""

_numbers = count()
"""Numbers of the groups that this process has made: equal on all ranks, which make theirs together."""

Result = TypeVar("Result")


class OnAllRanksError(Exception):
    """Error that all ranks raise together: none has failed, and they go on in another way."""


class Ranks:
    """The ranks of a mesh. They agree before each iteration, so that none can be repeated by one alone.

    rank: this one. size: number of ranks. shard: number of this rank's share. shards: of how many. replicas:
    number of ranks that hold the same share. members: all, by their numbers in the default group. mesh,
    placements: of shares. device: the one that computes here. on_node: the most ranks on one node, by the
    names of the hosts. lost: why no collective can run any more; empty if they can.
    """

    under_way = True

    def __init__(self, mesh: Mesh | RankGroups, device: torch.device) -> None:
        """Create the groups. Raises InputError for a mesh that is not one of running ranks."""
        groups = mesh if isinstance(mesh, RankGroups) else rank_groups(mesh, device)
        own = dist.get_rank()
        self.members = groups.all
        self.device, self._mesh = device, groups.mesh
        self.size, self.rank = len(groups.all), groups.all.index(own)
        self.shards, self.shard = len(groups.row), groups.row.index(own)
        self.replicas, self._in_first_row = len(groups.column), groups.in_first_row
        self._backend = device_of(device).collectives
        # Groups of a mesh's dimensions have PyTorch's default, not what init_process_group was given.
        try:
            self._timeout = min(timeout_of(each, device) for each in (groups.users, default_group()))
        except RuntimeError:
            raise InputError(
                f"a process group has no backend for tensors on the {device.type}, where the module is: "
                'create the default group by init_process_group("cpu:gloo,cuda:nccl"), or move the module'
            ) from None
        self._communicators = list[Communicator]()
        number = next(_numbers)
        store = SharedStore(f"memplan/{number}")
        meeting = Meeting(store, self.members, self._timeout, number)
        meeting.wait()
        # Others wait while rank 0 measures and solves, however long that takes.
        planning = max(self._timeout, _PLANNING)
        self._control = meeting.create(lambda: new_group(groups.all, "gloo", planning))
        # Between iterations: collectives of the one before may still be under way in the first group.
        self._steps = new_group(groups.all, "gloo", self._timeout)
        self._column, self._saving = None, self._control
        self._labels: dict[str, list[int]] = {}
        self._of_module: dict[str, Communicator] = {}
        self._signs = Signs(store, self.rank, self.size, self._timeout)
        self._finding = Lock()  # of the thread that finds out which rank is lost; others wait for its word
        self._known: BaseException | None = None  # error of this rank, known to all
        self._came = perf_counter()  # to the last collective
        self.lost = ""
        try:
            self._check_meshes()
            self._row = self._communicator(groups.row)
            if self.replicas > 1:
                self._column = self._communicator(groups.column)
                self._saving = new_group(groups.row, "gloo", planning)
            self.on_node = max(Counter(self.gathered(node())).values())
            self._check_versions()
            self._check_devices()
        except BaseException:
            self.end()
            raise
        finally:
            meeting.end()

    def _check_meshes(self) -> None:
        """Check that all ranks have one mesh: else they would make different groups."""
        found = self.gathered((self.replicas, self.shards))
        for rank, one in enumerate(found):
            if one != found[0]:
                first, other = (" × ".join(map(str, sizes)) for sizes in (found[0], one))
                raise MismatchError(
                    f"ranks 0 and {rank} differ in the mesh of shard=, of {first} and {other} ranks: give "
                    "all the same"
                )

    def _check_versions(self) -> None:
        """Check that all ranks run the same code: plans and errors travel between them as objects."""
        found = self.gathered(f"memplan {version.__version__} and torch {torch.__version__}")
        for rank, one in enumerate(found):
            if one != found[0]:
                raise MismatchError(
                    f"rank 0 has {found[0]}, rank {rank} {one}: install the same on all nodes"
                )

    def _check_devices(self) -> None:
        """Check that no two processes compute on one GPU: NCCL would wait for ever."""
        if (own := device_of(self.device).unique_name()) is None:
            return
        found = self.gathered(own)
        for rank, one in enumerate(found):
            if (other := found.index(one)) != rank:
                raise InputError(
                    f"ranks {other} and {rank} both compute on one device, {one}: give each its own, with "
                    f'torch.{self.device.type}.set_device(int(os.environ["LOCAL_RANK"]))'
                )

    @property
    def mesh(self) -> DeviceMesh:
        assert self._mesh is not None, "the module has placed its own DTensors"
        return self._mesh

    @property
    def placements(self) -> tuple[Placement, ...]:
        return PLACEMENTS[self.mesh.ndim - 1]

    # ── agreement ───────────────────────────────────────────────────────────────────────────────────

    def gathered(self, mine: Any) -> list[Any]:
        """Return what each rank has given, in the order of the ranks."""
        found: list[Any] = [None] * self.size
        with self._reported():
            self._meet()
            dist.all_gather_object(found, mine, group=opened(self._control))
        return found

    def from_first(self, mine: Any) -> Any:
        """Return what rank 0 has given."""
        found = [mine]
        with self._reported():
            self._meet()
            dist.broadcast_object_list(found, group=opened(self._control), group_src=0)
        return found[0]

    def _meet(self) -> None:
        """Wait until all ranks are here, for which one that plans may need long."""
        here = torch.zeros(1, device="cpu")
        self._signs.wait(dist.all_reduce(here, group=opened(self._control), async_op=True))

    def together(self, make: Callable[[], Result], failed_so: str = "has no plan") -> Result:
        """Return what `make` returns; if it fails on one rank it fails on all.

        failed_so: what is then said of that rank, before its error.
        Raises what it raises here, or another rank's error, with a line that names the rank: of its class if
            that is memplan's, so that a loop that catches it does so on all ranks, else MemplanError.
        """
        made, failed = None, None
        try:
            made = make()
        except BaseException as error:
            failed = error
        # Only memplan's errors travel as objects: others may not be known there.
        known = failed if isinstance(failed, MemplanError) else None
        found = self.gathered(failed and (line_of(failed), known))
        if failed is not None:
            self._known = failed
            raise failed
        for rank, row in enumerate(found):
            if row is not None:
                text, error = row
                error = error or MemplanError()
                error.args = (f"rank {rank} of {self.size} {failed_so}: {text}",)
                raise error
        return made  # pyright: ignore[reportReturnType]

    def numbers(self, *mine: int) -> list[list[int]]:
        """Return the numbers that each rank has given before an iteration, as many as each other.

        They take none of the device's memory, which may be full then: on the CPU that is what PyTorch's
        allocator gives. Gloo's all-gather would take some, and as many turns as there are ranks.
        """
        count = len(mine)
        # The same for each rank: an all-gather by all-to-all.
        sent = (ctypes.c_int64 * (self.size * count))(*mine * self.size)
        found = type(sent)()
        with self._reported():
            buffers = (torch.frombuffer(each, dtype=torch.int64) for each in (found, sent))
            dist.all_to_all_single(*buffers, group=opened(self._steps))
        return [found[start : start + count] for start in range(0, self.size * count, count)]

    def to_first(self, mine: Tensor, all_: Tensor | None = None) -> None:
        """Fill `all_` on rank 0 with the bytes of all shares, as many each, in host memory.

        Replicas have the same, so that those of rank 0 are enough.
        """
        if not self._in_first_row:
            return
        with self._reported():
            parts = None if all_ is None else [unowned(part) for part in all_.chunk(self.shards)]
            sent = unowned(mine)
            gathering = dist.gather(sent, parts, group=opened(self._saving), group_dst=0, async_op=True)
            self._signs.wait(gathering, mine, all_)

    def send_to_first(self, mine: Tensor) -> None:
        """Send a tensor, contiguous and in host memory, to rank 0, which calls `receive` for it."""
        with self._reported():
            dist.send(unowned(mine.view(-1).view(torch.uint8)), group=opened(self._steps), group_dst=0)

    def receive(self, buffer: Tensor, rank: int) -> None:
        """Fill a tensor, on rank 0, with the one that a rank sends."""
        with self._reported():
            dist.recv(unowned(buffer.view(-1).view(torch.uint8)), group=opened(self._steps), group_src=rank)

    # ── collectives of tensors ──────────────────────────────────────────────────────────────────────

    def gather(self, pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Fill full tensors with all shares; see Communicator."""
        self._row.gather(pairs)

    def scatter(self, pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Fill shares with this rank's part of the averages over the ranks. Gradients are overwritten.

        The averages are of those with which this rank spreads weights, then of replicas: FSDP2 rounds so.

        pairs: the gradient and this rank's share, both flat. Several are one collective.
        """
        self.scatter_in_row(pairs)
        self.average_replicas([share for _gradient, share in pairs])

    def scatter_in_row(self, pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Scatter without replicas."""
        self._row.scatter(pairs)

    def average_replicas(self, shares: Sequence[Tensor]) -> None:
        """Average flat shares of gradients over the replicas, in place; several are one collective."""
        if self._column is not None:
            self._column.average(shares)

    def add_up(self, numbers: Tensor) -> None:
        """Add a flat tensor up over the shares, in place, each once."""
        self._row.add_up(numbers)

    # ── groups of the module's own code ─────────────────────────────────────────────────────────────

    @property
    def users_groups(self) -> list[str]:
        """Names of the user's groups of the mesh's dimensions; weights are spread in the last."""
        return [*map(name_of_group, self.mesh.get_all_groups())]

    def label(self, name: str) -> str:
        """Return the label of a group of the module's code: equal on all ranks if the mesh is regular.

        It says which ranks it has, from its first.
        """
        members = ranks_of_group(name)
        label = "+".join(str(member - members[0]) for member in members)
        # Another group of the same form gets another label.
        while self._labels.setdefault(label, members) != members:
            label += "'"
        return label

    def members_of(self, label: str) -> list[int]:
        """Return the ranks of a group, by their numbers in the default group."""
        return self._labels[label]

    def open(self, labels: Iterable[str]) -> None:
        """Create communicators of these groups; all ranks call it together, in one order."""
        for label in labels:
            if label not in self._of_module:
                members = self._labels[label]
                own = self._row if members == self._row.members else self._communicator(members)
                self._of_module[label] = own

    def communicator(self, label: str) -> Communicator:
        """Return the communicator of a group of the module's code."""
        if self.lost:
            raise MemplanError(self.lost)
        return self._of_module[label]

    def _communicator(self, members: list[int]) -> Communicator:
        made = Communicator(members, self._backend, self._timeout, self._reported)
        self._communicators.append(made)
        return made

    # ── faults ──────────────────────────────────────────────────────────────────────────────────────

    def note(self, error: BaseException | None) -> None:
        """Note for others why this rank may not come to the next iteration; None: it has come."""
        if self.lost:  # another rank's fault, or noted
            return
        if error is None:
            self._signs.go_on()
        else:
            self._signs.fail(error)

    def leave(self, error: BaseException | None) -> None:
        """Leave for good, so that no rank waits for this one. error: what this rank has raised."""
        if not self.lost:
            self.note(error)  # first: once one is lost nothing is noted
            why = "" if error is None else f": {line_of(error)}"
            self.lost = f"this rank has failed{why}; start all ranks anew, from a checkpoint"
            self._end_groups()

    def end(self, error: BaseException | None = None) -> None:
        """End the groups: the program ends. error: with which it does, for the other ranks to name."""
        if error is not None:
            self.leave(error)
        elif not self.lost:
            self.lost = "the program has ended"
            self._end_groups()
        self._signs.await_readers()

    @contextmanager
    def beating(self) -> Generator[None]:
        """Surround a call of all ranks, in which others wait for this one as long as it lives.

        An error of this rank alone, which no other knows of, ends them all. It is none of memplan's.
        """
        try:
            with self._signs.beating():
                yield
        except OnAllRanksError:
            raise
        except BaseException as error:
            if isinstance(error, MemplanError) or error is self._known:
                self.note(error)
            else:
                self.leave(error)
            self._known = None
            raise

    @contextmanager
    def in_order(self) -> Generator[None]:
        """Surround a collective of an iteration: if it fails, whatever the reason, no later one runs.

        It would meet the one that the others are in.
        """
        try:
            yield
        except BaseException as error:
            self.leave(error)
            raise

    @contextmanager
    def _reported(self) -> Generator[None]:
        """Surround a collective: its failure becomes one line, which names the rank that is not there.

        Raises MemplanError; an error of this rank alone, as without memory, as it is.
        """
        if self.lost:
            with self._finding:  # until the thread that looks knows which rank
                raise MemplanError(self.lost)
        pause = perf_counter() - self._came
        try:
            yield
            self._came = perf_counter()
        except (RuntimeError, ValueError) as error:
            # A thread whose group another one has ended meanwhile gets a ValueError.
            if not self.lost and (isinstance(error, ValueError) or not is_of_network(error)):
                raise
            clear_frames(error.__traceback__)  # they hold the group
            with self._finding:
                if not self.lost:
                    self.lost = "the ranks have lost each other"
                    # A group ends when its collectives have ended.
                    if self._signs.end_waits() or isinstance(error, SilentError):
                        keep(self._control, self._saving)
                    self._end_groups()  # at once: ranks that wait for this one look for the lost one too
                    self.lost = (
                        f"{self._signs.find_lost(error, pause)}; start all ranks anew, from a checkpoint"
                    )
            raise MemplanError(self.lost) from None

    def _end_groups(self) -> None:
        groups = [self._control, self._steps, self._saving, *(each.end() for each in self._communicators)]
        self._control = self._steps = self._saving = None
        made = {id(group): group for group in groups if group is not None}  # without replicas two are one
        groups.clear()
        while made:
            with suppress(Exception):
                dist.destroy_process_group(made.popitem()[1])
