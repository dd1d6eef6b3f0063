"""The offloading program: transfers, recomputations and idle time between chosen moments of one iteration.

A *moment* is the start or the end of an operation's first run on the device, or the start of the iteration.
The moments follow each other in every order considered; the last window ends with the iteration. First runs
are in traced order, or in any. β: the rate of a link.

    paper          here         meaning
    u_j + idle_j   seconds      E_s: seconds from moment s to the next
    —              variant      μ_{o,m,s}: o first runs in window s, in execution variant m; f_o,s: in any
    —              before       b_{o,s}: o has run before moment s
    m_{i,k}        there        r_{x,s}: the part of tensor x whose bytes are on the device at moment s
    Σ O            below        h_{x,s}: the part of x's present version that has been copied down (stock)
    O_{i,j}        down         O_{x,s}: the part copied down in window s
    P_{i,j}        up           P_{x,s}: the part copied up in window s, not there at its start nor made in it
    —              returns      q_{x,s}: the part copied up in window s or later in the iteration
    —              recomputed   w_{o,s}: o runs in window s, and for the first time in another
    —              reruns       u_{o,s}: o runs before moment s and once more after it
    —              on_host      g_{x,s}: the part of x's present version that lies in host memory
    —              on_disk      z_{x,s}: the part of it that has been written to the disk (stock)
    —              written      W_{x,s}: the part written to the disk in window s
    —              read         D_{x,s}: the part read from the disk in window s, not on the host at its start

    minimise T = Σ_s E_s
    (1) E_s ≥ Σ_o Σ_m μ_{o,m,s} time_{o,m} + Σ_o time_o w_{o,s}      first runs on the device, then others;
        from the start of an operation to its end they are equal, and w = 0
    (2) β E_s ≥ Σ_x size_x O_{x,s},   β E_s ≥ Σ_x size_x P_{x,s}     each link; in seconds, the sum over
        links that share a resource, as gathers P and scatters O of spread tensors do
    (3) T ≥ Σ_o Σ_m Σ_s μ_{o,m,s} time_{o,m}                         on the CPU
    (4) Σ_x size_x r_{x,s} + what the moment's operation needs ≤ limit
    (5) r_{x,s+1} ≤ r_{x,s} + P_{x,s} + made_{x,s}                   made: f and w of what makes x
    (6) h_{x,s+1} ≤ h_{x,s} + O_{x,s} + μ of a change on the host; if x is changed, O and μ since then;
        O_{x,s} ≤ r_{x,s} + P_{x,s} + made_{x,s};  P_{x,s} ≤ h_{x,s} + that μ
    (7) r_{x,s} + P_{x,s} + made_{x,s} ≥ need_c                      c uses x on the device in s: μ and w
    (8) r_{x,s} + h_{x,s} + u_{p,s} ≥ b_{p,s} − b_{c,s},  ≥ u_{c,s}  p makes x, c uses it; the same with q for
        h if c uses it on the device; r_{x,s} + h_{x,s} ≥ 1 and r_{x,s} + q_{x,s} ≥ Σ_{k ≥ s} μ_{c,k}
        if x is persistent
    (9) Σ_s O_{x,s} ≥ μ of what reads x on the host; if x is changed there: r_{x,s+1} ≤ P since + 1 − μ
    (10) Σ_s f_{o,s} = 1,  b_{c,s} ≤ b_{p,s} if c must follow p,  w_{o,s} ≤ b_{o,s},  u_{o,s} ≤ b_{o,s}
    (11) u_{o,s} ≤ w_{o,s} + u_{o,s+1},  q_{x,s} ≤ P_{x,s} + q_{x,s+1}

If not all fits into host memory, h is what lies below at the moment: on the host, g, or on the disk, z.
With μ as in (6):

    (12) Σ_x size_x g_{x,s} ≤ capacity              of what the CPU changes: g_{x,s} − Σ_k (O_{x,k} + D_{x,k})
    (13) g_{x,s} + z_{x,s} ≥ h_{x,s},  ≥ 1 − r_{x,s} if x never changes;  P_{x,s} ≤ g_{x,s} + D_{x,s} + μ;
        D_{x,s} ≤ z_{x,s};  g_{x,s+1} ≤ g_{x,s} + O_{x,s} + D_{x,s} + μ
    (14) W_{x,s} ≤ g_{x,s} + O_{x,s} + μ;  z_{x,s+1} ≤ z_{x,s} + W_{x,s};  if x is changed, W since then
    (15) β T ≥ Σ_s Σ_x size_x W_{x,s},  the same with D;  but for what the CPU changes:
        β E_s ≥ Σ_x size_x W_{x,s}
    (16) g_{x,s} + Σ_k (O_{x,k} + D_{x,k}) ≥ μ of what uses a persistent x on the CPU in window s

Why schedules satisfy this, with averages over the iterations of their steady state. r counts the bytes that
have arrived, and those not yet copied down while a delete is pending: what else is needed of x is below. A
transfer after an operation in the list starts after its end, so what arrives while it runs was allocated
before it in the list; and an allocation waits for the copy that still reads its memory. So no byte of the
device serves two, and (4) holds at the operation's start and end. (2): a link moves β bytes a second,
wherever in E_s a copy begins or ends; what an operation makes is copied down after its end, so not from its
start to its end. (5) to (7): what is resident was resident, came up, or was made; what comes up was copied
down before, whole. What an operation is about to write takes its bytes at its start, and says nothing of what
was resident before. (8): each byte of x that is still needed is somewhere, and is resident, comes up or is
recomputed before it is used. (9): what the CPU reads was copied down, what it changed comes up. What an
operation that may run on the CPU writes counts no bytes: it may lie below without a copy. P and w above 1 in
a window are of no use and count as 1; copies of gradients that end in the next iteration load the link, in no
window of their own. Persistent tensors wrap around.

Host memory: a copy listed before the moment's operation counts in g by what it has brought by the
operation's start, or by what a copy that reads it, its delete pending, has not yet taken. An allocation in
its memory waits for that, so no byte of the host serves two, and (12) holds. A read of the disk waits for no
computation and may run long before the moment that it follows in the list: it loads the iteration, not a
window.
A write waits for the copy down, and so for what made its version, but not for the CPU. Nor does host memory
wait for the CPU: what it changes may be counted as changed while its copy down is on its way, so in (12)
only what never moves counts; what it changes and is not persistent does not. Copies on the disk have no
limit and are never deleted; what never changes may lie there from the start, z = 1, if it can be read.
Without disks and CPU operations all that lies on the host crosses the links, so the capacity is that of
pinned memory.

In any order nothing is known of the window of an operation that may be on either side of a moment: f is
then a separate variable (windows.py), and nothing else changes. With the same moments the program of the
traced order is this one with f given, so it is never below. Moments on the longest chain of dependencies
leave few operations open.

The paper's (2) to (6) are (2) and (4) to (7) at the starts of all operations: with the own weight counted
once in (4), the signs of (6) as they must be, and h as an explicit stock: rows stay short. Its (3), no copy
of w_i during B_i, is here what is said of ends. Its (7) and (8), whole tensors, are `whole`: Σ O of a version
and Σ P of an offload interval are 0 or 1, as every iteration makes the same transfers; all operations are
moments then, and nothing is recomputed.

In sharded training the peers are below a spread tensor: h = 1 for a weight, which lies there for ever and is
changed there (μ of a change on the host, in (6) and (9)); a gradient has O, for its update, and no P.

Leaving out moments, solving it in fractions or from the dual side makes it lower and leaves it true.
Reference: Beaumont, Eyraud-Dubois, Shilova, Zhao 2022, Inria hal-03580767, section 6.
"""

from __future__ import annotations

from collections.abc import Sequence

from ....graphs.graph import Graph
from ....graphs.machine import Machine
from ....planner.simulator.clock import Queue
from ...milp.linear import ZERO, Linear, column_sum, total
from ...problem import OrderName
from .columns import OffloadColumns
from .host import HostRows
from .stocks import StockRows


def offload_program(
    graph: Graph,
    machine: Machine,
    limit: int,
    marks: Sequence[int],
    order: OrderName = "file",
    whole: bool = False,
) -> OffloadColumns:
    """Write an offloading program. The arguments are those of `OffloadColumns`."""
    columns = OffloadColumns(graph=graph, machine=machine, limit=limit, marks=marks, order=order, whole=whole)
    _add_first_runs(columns)
    _UseRows(columns)
    StockRows(columns)
    if columns.host is not None:
        HostRows(columns)
    return columns


def _add_first_runs(columns: OffloadColumns) -> None:
    """Write (10): in which windows operations run."""
    iteration = columns.iteration
    for variants in columns.variant:
        if variants:
            columns.model.add(column_sum(*variants.values()).equals(1.0))
    # Every first run's window is known, as in traced order: nothing is left to say.
    if all(map(iteration.known, range(len(iteration.of)))):
        return
    for s in columns.windows:
        for operation, column in {*columns.recomputed[s].items(), *columns.reruns[s].items()}:
            columns.require(columns.before(operation, s) >= column_sum(column))
    for operation, leading in enumerate(columns.facts.predecessors):
        for other in leading:
            for s in range(iteration.of[operation][0] + 1, iteration.of[other][-1] + 1):
                columns.require(columns.before(other, s) >= columns.before(operation, s))


class _UseRows:
    """Writer of rows (1) to (4), (7), and of those of (9) for what the CPU reads."""

    def __init__(self, columns: OffloadColumns) -> None:
        self.columns = columns
        self._time()
        for s in columns.windows:
            self._memory(s)
            self._uses(s)

    def _time(self) -> None:
        """Write rows (1) to (3)."""
        columns = self.columns
        whole = column_sum(*columns.seconds)
        cpu: list[Linear] = []
        for s in columns.windows:
            here = column_sum(columns.seconds[s])
            parts: list[Linear] = []
            for operation in columns.firsts[s]:
                for number, variant in enumerate(columns.variants[operation]):
                    one = variant.seconds / columns.unit * columns.first(operation, s, [number])
                    (cpu if variant.on_host else parts).append(one)
            rerun = columns.recomputed[s].items()
            parts.append(Linear((column, self._fastest(o) / columns.unit) for o, column in rerun))
            spent = total(parts)
            columns.require(here >= spent)  # (1)
            if s in columns.exact:
                columns.require(spent >= here)  # (1)
            for load in columns.loads(s).values():
                columns.require(here >= load)  # (2)
        columns.require(whole >= total(cpu))  # (3)
        late: dict[int, list[Linear]] = {}
        for operation, variants in enumerate(columns.variants):
            for x in {x for variant in variants for x in variant.host} & columns.read_below:
                after = [columns.column(columns.down[s], x) for s in columns.windows]
                after_all = columns.model.variable()
                for lane, part in columns.taken(x, 0):
                    late.setdefault(lane, []).append(after_all * (part * columns.copy_seconds(x, 0)))
                reads = columns.chosen(
                    operation, columns.numbers(operation, lambda variant, x=x: x in variant.host)
                )
                columns.require(total([*after, after_all]) >= reads)  # (9)
        of_links = {lane for taken in columns.lanes[Queue.D2H :] for lane, _part in taken}
        for lane, _part in columns.lanes[Queue.CPU]:
            if lane in of_links:  # the CPU takes turns with links
                late.setdefault(lane, []).extend(cpu)
        for lane, more in late.items():
            in_windows = [columns.loads(s).get(lane, ZERO) for s in columns.windows]
            columns.require(whole >= total([*in_windows, *more]))

    def _fastest(self, operation: int) -> float:
        return min(variant.seconds for variant in self.columns.variants[operation] if not variant.on_host)

    def _memory(self, s: int) -> None:
        """Write row (4), as fractions of the limit."""
        columns = self.columns
        if columns.iteration.at[s] < 0:
            return
        variants = columns.variants[columns.iteration.at[s]]
        sizes = columns.sizes
        needs = sum(sizes[x] for x in columns.touched[s] | columns.batch) + min(
            variant.workspace for variant in variants
        )
        others = Linear((column, sizes[x] / columns.limit) for x, column in columns.there[s].items())
        # the difference of whole numbers is exact before it is rounded
        columns.model.add(others <= (columns.limit - needs) / columns.limit)

    def _uses(self, s: int) -> None:
        """Write rows (7)."""
        columns = self.columns
        for operation in sorted({*columns.firsts[s], *columns.recomputed[s]}):
            variants, reruns = columns.variants[operation], columns.column(columns.recomputed[s], operation)
            for x in {x for variant in variants for x in variant.device} - columns.batch:
                numbers = columns.numbers(operation, lambda variant, x=x: x in variant.device)
                needed = columns.first(operation, s, numbers)
                if all(x in variant.device for variant in variants if not variant.on_host):
                    needed = needed + reruns
                for producer in columns.facts.producers[x] if not columns.persistent[x] else [-1]:
                    made = columns.made_by(producer, s) if producer >= 0 else ZERO
                    columns.require(columns.come(x, s) + made >= needed)
            self._host_uses(operation, s)

    def _host_uses(self, operation: int, s: int) -> None:
        """Require that what an execution variant on the device reads in host memory lies there."""
        columns = self.columns
        read = {x for variant in columns.variants[operation] if not variant.on_host for x in variant.host}
        for x in (x for x in read - columns.batch if columns.sizes[x]):
            numbers = columns.numbers(
                operation, lambda variant, x=x: x in variant.host and not variant.on_host
            )
            lies = columns.is_below(x, s) + columns.column(columns.down[s], x) + columns.changed_below(x, s)
            columns.require(lies >= columns.first(operation, s, numbers))
