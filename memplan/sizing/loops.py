"""Graphs of a model's training loop on one GPU, batch by batch: as a plan runs it, and as PyTorch does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from ..graphs.graph import Graph
from ..graphs.machine import Machine, Peers
from ..graphs.machines.presets import Preset
from ..graphs.transformations.mixed_precision import MixedPrecision, sharded_in_mixed_precision
from ..graphs.transformations.sharding import sharded
from ..planner.addresses.caching_allocator import reserved_peak
from ..planner.baseline import baseline_schedule
from ..planner.schedule.schedule import Schedule
from ..planner.simulator.simulate import Replay, figures_of
from .accumulation import accumulating
from .eight_bit import with_eight_bit_states
from .estimate_range import Span, memory_span, units_span
from .ordinary_loop import ordinary_loop

if TYPE_CHECKING:
    from ..profiling.profile.estimates import Estimates

NO_LINKS = Machine()


@dataclass(frozen=True)
class Loop:
    """A graph, and the one with the largest workspaces that its operations may take."""

    graph: Graph
    worst: Graph

    def changed(self, change: Callable[[Graph], Graph]) -> Loop:
        return Loop(change(self.graph), change(self.worst))


@dataclass
class Loops:
    """Graphs of one model on one GPU, each made when it is first requested.

    steps: micro-batches per update, by batch.
    unplanned_spans: may be shared by GPUs: those that run the same operations have the same bytes.
    peers: the network of sharded training, whose ranks each have a batch; None: one GPU trains alone.
    reduce_dtype: dtype in which ranks sum up gradients by FSDP2's mixed precision; None without it.
    expandable: PyTorch's allocator has expandable segments.
    of_length: returns the model's graphs with samples of another length.
    """

    estimates: Estimates
    preset: Preset
    steps: Callable[[int], int] = lambda _batch: 1
    peers: Peers | None = None
    reduce_dtype: str | None = None
    expandable: bool = False
    of_length: Callable[[int], Estimates] | None = None
    unplanned_spans: dict[tuple[int, object], tuple[object, Span]] = field(
        default_factory=dict[tuple[int, object], tuple[object, Span]]
    )
    _made: dict[tuple[str, int], tuple[Graph, Loop]] = field(
        default_factory=dict[tuple[str, int], tuple[Graph, Loop]]
    )

    def with_steps(self, steps: int) -> Loops:
        """Return the loops with so many micro-batches per update."""
        always: Callable[[int], int] = lambda _batch: steps  # noqa: E731
        return replace(self, steps=always, unplanned_spans={}, _made={})

    def at_length(self, length: int) -> Loops:
        """Return the loops with samples of this length; `of_length` is known."""
        assert self.of_length is not None
        return replace(self, estimates=self.of_length(length), unplanned_spans={}, _made={})

    def planned(self, batch: int) -> Loop:
        """Return the loop of a plan: each weight is updated as --update says."""
        return self._loop("planned", batch, lambda loop: loop)

    def ordinary(self, batch: int) -> Loop:
        """Return the loop that people have: gradients until the step, which makes its copies."""
        copies = self.estimates.foreach_copies
        return self._loop("ordinary", batch, lambda loop: loop.changed(lambda g: ordinary_loop(g, copies)))

    def eight_bit(self, batch: int) -> Loop:
        """Return the ordinary loop with optimizer states of 8 bits, whose step makes no copies."""
        from ..profiling.profile.loops import BLOCK_BYTES, state_elements

        elements = state_elements(self.estimates.program(batch, self.preset))

        def change(graph: Graph) -> Graph:
            return ordinary_loop(with_eight_bit_states(graph, elements, BLOCK_BYTES), 0)

        return self._loop("8-bit", batch, lambda loop: loop.changed(change))

    def in_pieces(self, batch: int, goals: Sequence[int]) -> list[Graph]:
        """Return graphs of a plan's loop with regions in pieces; none if nothing splits.

        goals: bytes for the largest operation, the largest first.
        """
        from ..profiling.profile.loops import cost_of_adding

        cost, steps = cost_of_adding(self.preset), self.steps(batch)
        found = self.estimates.in_pieces(batch, self.preset, goals)
        return [accumulating(graph, steps, cost) for graph in found]

    def agrees(self, batch: int) -> bool:
        """Tell whether a trace at this batch gives what was interpolated; if not, graphs are made anew."""
        return self.estimates.agrees(batch, self.preset)

    def unplanned_span(self, batch: int, constant: int) -> Span:
        """Return the device bytes of the loop that people have. constant: what cuBLAS keeps."""
        demanded = self.estimates.demanded(self.preset, batch)
        demands, key = demanded.demands(batch), (batch, demanded)
        if key not in self.unplanned_spans or self.unplanned_spans[key][0] is not demands:
            loop = self.ordinary(batch)
            self.unplanned_spans[key] = demands, self.span(loop, baseline_schedule(loop.graph), 0)
        span = self.unplanned_spans[key][1]
        # The constant is added last: it differs between GPUs that share the span.
        return Span(span.low, span.expected + 2 * constant, span.high + 2 * constant)

    def span(self, loop: Loop, schedule: Schedule, constant: int, machine: Machine = NO_LINKS) -> Span:
        """Return the device bytes of PyTorch's own loop: its allocator's, and a workspace of cuBLAS for the
        thread of backward too.

        constant: what cuBLAS keeps. machine: with a device of any size.
        """
        return memory_span(
            loop.graph,
            loop.worst,
            schedule=schedule,
            budget=figures_of(loop.graph, schedule, machine=machine).least_budget,
            machine=machine,
            constant=2 * constant,
            reserved=partial(reserved_peak, expandable=self.expandable),
        )

    def units_span(self, loop: Loop, schedule: Schedule, constant: int) -> Span:
        """Return the device bytes of FSDP2 with one of its policies. constant: what cuBLAS keeps."""
        reserved = partial(reserved_peak, expandable=self.expandable)
        return units_span(loop.graph, loop.worst, schedule, 2 * constant, reserved)

    def tokens(self, batch: int) -> int | None:
        """Return the tokens of a sample, None if the model takes none."""
        from ..profiling.profile.loops import tokens_per_sample

        return tokens_per_sample(self.estimates.program(batch, self.preset), batch)

    def adapters(self, batch: int) -> str | None:
        """Return in words which layers have adapters and how much is trained; None if there are none."""
        from ..profiling.profile.loops import adapted_layers, trained_elements

        program = self.estimates.program(batch, self.preset)
        layers = adapted_layers(program)
        if not layers:
            return None
        rank = program.values[program.parameters[f"{layers[0]}.lora_A.weight"]].shape[0]
        names = ", ".join(sorted({name.rpartition(".")[2] for name in layers}))
        trained, all_weights = trained_elements(program)
        return (
            f"r={rank} on {len(layers):,} layers, {names}: {trained:,} of {all_weights:,} weights are "
            f"trained, {trained / all_weights:.2%}"
        )

    def _loop(self, name: str, batch: int, change: Callable[[Loop], Loop]) -> Loop:
        # A model that does not follow its line is estimated anew, and then the graph is another.
        graph = self.estimates.graph(batch, self.preset)
        known = self._made.get((name, batch))
        if known is None or known[0] is not graph:
            loop = change(self._micro_batch(batch))
            self._made[name, batch] = graph, self._of_a_rank(loop, batch, planned=name == "planned")
        return self._made[name, batch][1]

    def _of_a_rank(self, loop: Loop, batch: int, *, planned: bool) -> Loop:
        from ..profiling.profile.loops import cost_of_adding, weights_in

        if (peers := self.peers) is None:
            return loop
        if self.reduce_dtype is None:
            return loop.changed(lambda graph: sharded(graph, peers))
        weights = weights_in(self.estimates.program(batch, self.preset), "bfloat16")
        # A cast to twice the bytes moves as many as adding to a sum.
        cost = cost_of_adding(self.preset)

        def seconds(size: int) -> float:
            return cost(size)[0]

        in_float32 = self.reduce_dtype == "float32"
        policy = MixedPrecision(seconds if in_float32 else None, wide_shares=not planned)
        return loop.changed(lambda graph: sharded_in_mixed_precision(graph, peers, policy, weights))

    def _micro_batch(self, batch: int) -> Loop:
        from ..profiling.profile.loops import cost_of_adding

        loop = Loop(self.estimates.graph(batch, self.preset), self.estimates.at_worst(batch, self.preset))
        cost = cost_of_adding(self.preset)
        return loop.changed(lambda graph: accumulating(graph, self.steps(batch), cost))


def planned_span(
    loop: Loop,
    schedule: Schedule,
    budget: int,
    machine: Machine,
    constant: int,
    replay: Replay | None = None,
) -> Span:
    """Return the device bytes of a plan, low, expected and high.

    budget: bytes that the schedule fits in. machine: with a device of any size. constant: what cuBLAS keeps.
    replay: what the simulator said of it, if it was asked.
    """
    return memory_span(
        loop.graph,
        loop.worst,
        schedule=schedule,
        budget=budget,
        machine=machine,
        constant=constant,
        reserved=None,
        replay=replay,
    )
