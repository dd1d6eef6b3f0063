"""Results of sizing, on one GPU or on ranks of sharded training that have one each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from ..graphs.machine import Machine, Peers
from ..graphs.machines.presets import Preset
from .alternatives import NextSteps
from .at_once import AS_IT_IS
from .breakdown import Breakdown
from .estimate_range import Span
from .lengths import ManyLengths
from .policies import PolicyFigures
from .question import Room
from .trial import BatchTrial, Unanswered

NEARLY = 0.95
"""Share of the most samples per second that is nearly as fast."""
FASTER = 0.005
"""Share of an iteration by which a plan has to be faster than FSDP2's policies to be advised."""
_SECONDS = 3600
"""Seconds of an hour, for which prices are."""


class Spans:
    """Device bytes that batches take: each span is computed when it is first wanted."""

    def __init__(self) -> None:
        self._later: dict[int, Callable[[], Span]] = {}
        self._known: dict[int, Span] = {}

    def add(self, batch: int, span: Callable[[], Span]) -> None:
        """Set how a batch's span is computed."""
        self._later[batch] = span
        # A later trial of the batch may have a faster schedule, with another peak.
        self._known.pop(batch, None)

    def get(self, batch: int) -> Span | None:
        """Return a batch's span, None if it has none."""
        if batch not in self._known and batch in self._later:
            self._known[batch] = self._later[batch]()
        return self._known.get(batch)


class CurvePoint(NamedTuple):
    """The fastest known within a budget of device bytes; seconds are None if nothing is known to fit.

    host_peak: bytes that the plan has on the host.
    """

    budget: int
    policy: str | None
    policy_seconds: float | None
    seconds: float | None
    host_peak: int | None


class InPieces(NamedTuple):
    """The plans with operations in pieces.

    least: the smallest budget found of the first batch. largest: the largest batch; None if none fits.
    """

    least: BatchTrial | None = None
    largest: BatchTrial | None = None


@dataclass
class SizeResult:
    """Results on one GPU, or on ranks that have one each.

    machine: of the GPU, or of a rank. room: of each GPU.
    peers: the network of the ranks, None on one GPU.
    trials: at the GPU's limit, batch by batch; of ranks each has its own batch.
    interrupted: whether the search was ended early.
    spans: bytes that each batch takes; of ranks those of the batches with the solver's whole time.
    hasty: batches whose schedule may be far from the fastest.
    tokens: of a sample, None if the model takes none.
    price: of a GPU, per hour, None if not given.
    adapters: the layers that --lora adapts, in words, None without.

    On one GPU:

    as_it_is: batches that fit without a plan, in the loop that people have.
    least: the smallest budget found of the first batch.
    pinning: the smallest batch that does not fit, if it would with more pinned host memory.
    pinned: bytes that can be pinned.
    parts: memory of the batch to train with, by module.
    in_pieces: what operations in pieces buy; None if that was not asked for.
    lengths: what batches of many lengths take; None if samples have one.
    next_steps: what else there is for one batch, None on one of several GPUs.

    On ranks:

    policies: FSDP2's, by batch, the fastest that fit first.
    policy_spans: their device bytes at the fastest batch, by name.
    curve: time against memory, of that batch.
    shares: bytes of weights and optimizer states on each rank.
    """

    preset: Preset
    room: Room
    machine: Machine
    peers: Peers | None = None
    trials: list[BatchTrial] = field(default_factory=list[BatchTrial])
    interrupted: bool = False
    spans: Spans = field(default_factory=Spans)
    hasty: set[int] = field(default_factory=set[int])
    tokens: int | None = None
    price: float | None = None
    adapters: str | None = None

    as_it_is: set[int] = field(default_factory=set[int])
    least: BatchTrial | None = None
    pinning: BatchTrial | None = None
    pinned: int | None = None
    parts: Breakdown | None = None
    in_pieces: InPieces | None = None
    lengths: ManyLengths | None = None
    next_steps: NextSteps | None = None

    policies: dict[int, tuple[PolicyFigures, ...]] = field(
        default_factory=dict[int, tuple[PolicyFigures, ...]]
    )
    policy_spans: dict[str, Span] = field(default_factory=dict[str, Span])
    curve: list[CurvePoint] = field(default_factory=list[CurvePoint])
    shares: int = 0

    # ── batches ─────────────────────────────────────────────────────────────────────────────────────

    @property
    def by_batch(self) -> list[BatchTrial]:
        return sorted(self.trials, key=lambda one: one.batch)

    @property
    def fitting(self) -> list[BatchTrial]:
        return [one for one in self.by_batch if one.figures]

    @property
    def largest(self) -> BatchTrial | None:
        return max(self.fitting, key=lambda one: one.batch, default=None)

    @property
    def unplanned(self) -> BatchTrial | None:
        there = (one for one in self.fitting if one.batch in self.as_it_is)
        return max(there, key=lambda one: one.batch, default=None)

    @property
    def fastest(self) -> BatchTrial | None:
        """The batch of most samples per second, the smallest of equals."""
        return max(self.fitting, key=lambda one: (self.rate(one), -one.batch), default=None)

    @property
    def advised(self) -> BatchTrial | None:
        """The batch to train with: on ranks the fastest; on one GPU the smallest that is nearly as fast."""
        if self.peers is not None:
            return self.fastest
        most = max(map(self.rate, self.fitting), default=0.0)
        # Batches grow, so the first is the smallest.
        return next((one for one in self.fitting if self.rate(one) >= NEARLY * most), None)

    @property
    def unanswered(self) -> list[Unanswered]:
        """Questions that the solver had no answer to."""
        return [one.unanswered for one in self.trials if one.unanswered is not None]

    def tight(self, batch: int) -> bool:
        """Tell whether the batch fits as expected but might not."""
        span = self.spans.get(batch)
        return span is not None and span.high > self.room.limit

    def add_lengths(self, found: ManyLengths) -> None:
        """Add what batches of many lengths take, also to the high ends of loops without a plan."""
        self.lengths, high = found, {way.name: way.high for way in found.ways}
        span = self.spans.get(found.batch)
        if span is not None and found.batch in self.as_it_is:
            self.spans.add(found.batch, lambda: span._replace(high=high[AS_IT_IS]))
        if self.next_steps is not None:
            rows = (
                row._replace(span=row.span._replace(high=high[row.name]))
                if row.span is not None and row.name in high
                else row
                for row in self.next_steps.rows
            )
            self.next_steps = self.next_steps._replace(rows=tuple(rows))

    # ── ranks ───────────────────────────────────────────────────────────────────────────────────────

    @property
    def gpus(self) -> int:
        """Number of GPUs: 1, or the ranks of all replicas."""
        if self.peers is None:
            return 1
        # HSDP: each replica is a whole set of ranks.
        return self.peers.ranks * (self.peers.replicas.count if self.peers.replicas else 1)

    def policy(self, one: BatchTrial) -> PolicyFigures | None:
        """Return the fastest policy of FSDP2 that fits."""
        return next((row for row in self.policies.get(one.batch, ()) if row.seconds is not None), None)

    @property
    def fastest_by_policy(self) -> BatchTrial | None:
        """The batch with the most samples per second by a policy of FSDP2."""
        rates = {one.batch: self.rate(one, row.seconds) for one in self.by_batch if (row := self.policy(one))}
        there = (one for one in self.by_batch if one.batch in rates)
        return max(there, key=lambda one: rates[one.batch], default=None)

    @property
    def plan_is_faster(self) -> bool:
        """Tell whether at the fastest batch a plan is faster than FSDP2's policies."""
        one = self.fastest
        if one is None or one.seconds is None:
            return False
        policy = self.policy(one)
        # Below the error of the estimates FSDP2 without a plan is the simpler advice.
        return policy is None or one.seconds < (1 - FASTER) * (policy.seconds or 0.0)

    # ── speed ───────────────────────────────────────────────────────────────────────────────────────

    def rate(self, one: BatchTrial, seconds: float | None = None) -> float:
        """Return the samples per second of all GPUs, 0.0 if there is no time.

        seconds: of an update by something else than the batch's plan.
        """
        seconds = one.seconds if seconds is None else seconds
        return self.gpus * one.samples / seconds if seconds else 0.0

    def samples_per_price(self, rate: float | None = None) -> float | None:
        """Return the samples for one unit of the price's currency, None without a price.

        rate: samples per second of all GPUs, None for those of the batch to train with.
        """
        if rate is None:
            rate = 0.0 if self.advised is None else self.rate(self.advised)
        # The rate is of all GPUs, the price of one.
        return None if self.price is None or not rate else _SECONDS * rate / (self.gpus * self.price)
