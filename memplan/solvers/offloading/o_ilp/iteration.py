"""O-ILP's input: steps, blocks with their options, groups of weights; numbers and names.

    step 0 … L-1: forward of block 0 … L-1;  L … 2L-1: backward of block L-1 … 0;  then what runs after all

The steps are a cycle: the next iteration's first follows the last.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ....planner.schedule.sequence import Run
from ....planner.simulator.clock import Lanes


@dataclass(frozen=True)
class Option:
    """An execution variant of a block (an option o of the thesis, 4.4), updates not in its seconds.

    T_t^o: forward_seconds, backward_seconds.  S_i^o: kept_bytes, what waits between the two parts, the
    block's input among it.  Peaks: bytes while a part runs, without batch, persistent tensors, weight
    gradients.  forward, backward: the runs.  kept: the tensors that wait.
    """

    forward_seconds: float
    backward_seconds: float
    kept_bytes: int
    forward_peak: int
    backward_peak: int
    forward: tuple[Run, ...] = ()
    backward: tuple[Run, ...] = ()
    kept: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Parcel:
    """Weights that one update changes, or a frozen weight alone. Tensors and operations by number.

    host_run: the update on the CPU, None if it can't run there; it takes host_seconds. bytes: weights'.
    """

    weights: tuple[int, ...]
    states: tuple[int, ...] = ()
    gradients: tuple[int, ...] = ()
    update: Run | None = None
    host_run: Run | None = None
    host_seconds: float = 0.0
    bytes: int = 0


@dataclass(frozen=True)
class Group:
    """Parcels with the same steps: what the thesis calls a parameter w.

    |w|: bytes.  |w|_g: gradient_bytes.  k|w|_g: state_bytes.  P_t: uses, steps that need it on the device.
    g_w: last, the step that updates it; None if it is frozen.  |w|_g / α_G, |w|_g / α_C: device_seconds,
    host_seconds (None: not on the CPU).
    """

    bytes: int
    uses: tuple[int, ...]
    last: int | None = None
    gradient_bytes: int = 0
    state_bytes: int = 0
    device_seconds: float = 0.0
    host_seconds: float | None = None
    parcels: tuple[Parcel, ...] = ()


@dataclass(frozen=True)
class Carried:
    """Bytes made in one step and next needed in another, at least two later; they may leave in between."""

    bytes: int
    made: int
    needed: int
    tensors: tuple[int, ...] = ()


@dataclass(frozen=True)
class Iteration:
    """The input of the program, for one iteration.

    blocks: their options.
    base_bytes: per step, what is on the device whatever is decided (A_t, in addition to the options' peaks).
    after_seconds: of the steps after all blocks. after: their runs.
    stays: tensors that may not leave the device.
    """

    blocks: tuple[tuple[Option, ...], ...]
    groups: tuple[Group, ...]
    base_bytes: tuple[int, ...]
    carried: tuple[Carried, ...] = ()
    after_seconds: tuple[float, ...] = ()
    after: tuple[tuple[Run, ...], ...] = field(default=())
    stays: frozenset[int] = frozenset()

    @property
    def steps(self) -> int:
        return 2 * len(self.blocks) + len(self.after_seconds)

    def forward_step(self, block: int) -> int:
        return block

    def backward_step(self, block: int) -> int:
        # Mirrored: the last block's backward follows its forward directly.
        return 2 * len(self.blocks) - 1 - block


@dataclass(frozen=True)
class Limits:
    """The machine's limits.

    device_bytes, host_bytes, disk_bytes: capacities, M_GPU and M_CPU in the paper; None for no limit, 0 bytes
        of disk for no disk.
    d2h, h2d, disk_read, disk_write: rates in bytes/s, β in the paper.
    management: seconds per step, H in the paper.
    lanes: what links share (planner/simulator/clock.py); empty: nothing.
    """

    device_bytes: int
    host_bytes: int | None
    d2h: float
    h2d: float
    management: float = 0.0
    disk_bytes: int | None = 0
    disk_read: float | None = None
    disk_write: float | None = None
    lanes: Lanes = ()

    @property
    def has_disk(self) -> bool:
        # None means a disk without a limit.
        return self.disk_bytes != 0 and self.disk_read is not None and self.disk_write is not None
