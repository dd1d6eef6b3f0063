"""A request to sizing, by the command or in Python: the options, checked together, and the search."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..graphs.errors import InputError
from ..graphs.machine import Links, Machine
from ..graphs.machines.network_request import NetworkRequest
from ..graphs.machines.presets import Preset
from ..graphs.transformations.updates import When
from ..planner.budget import Budget
from ..solvers.registry import run as registry
from ..solvers.registry.catalogue import DEFAULT_SOLVER
from .lengths import Lengths
from .prices import parse_prices
from .rooms import ALL, Note, chosen_presets, room_of, with_dtypes
from .sizing import Sizing
from .subject import Build, LoopOptions, open_subject
from .trial import LARGEST

if TYPE_CHECKING:
    from ..model.file import ModelFile


def parse_batches(text: str) -> list[int]:
    """Parse '1,2,4'. Raises InputError."""
    # [:20]: int() takes 4,300 digits, and so many are too large as well.
    batches = [int(word.strip()[:20]) for word in text.split(",") if word.strip().isdecimal()]
    # Fewer numbers than places between commas: one of them is no number.
    if len(batches) != text.count(",") + 1 or not all(0 < batch <= LARGEST for batch in batches):
        raise InputError(
            f"{text!r} is not a list of batches: give integers like 1,2,4, from 1 to {LARGEST:,}"
        )
    return batches


@dataclass(frozen=True)
class SizeRequest:
    """The options of `plan size`; messages name them as the command spells them.

    model: a model file or a script, a configuration, or a function that builds the model.
    lengths: of samples that are cut to `length`, if that is given.
    gpu: a name, several with commas, or 'all'.
    machine: around one GPU. batches: to try, None: search. length, dtype: of a configuration.
    price: as `parse_prices` reads it.
    """

    model: str | Build | ModelFile
    gpu: str
    host: str | None = None
    lanes: str | None = None
    machine: Machine | None = None
    budget: Budget | None = None
    reserve: Budget | None = None
    batches: Sequence[int] | None = None
    length: int | None = None
    dtype: str | None = None
    price: str | None = None
    optimizer: str = "adamw"
    update: When = "in-backward"
    lengths: Lengths | None = None
    loop: LoopOptions = field(default_factory=LoopOptions)
    network: NetworkRequest = field(default_factory=NetworkRequest)
    solver: str = DEFAULT_SOLVER
    settings: Mapping[str, str] = field(default_factory=dict[str, str])
    time_limit: float | None = None
    cached: bool = True

    def presets(self, note: Note) -> list[Preset]:
        """Check what can be checked without the model, and return the GPUs. Raises InputError, one line."""
        chosen, network, loop = chosen_presets(self.gpu, self.host, self.lanes), self.network, self.loop
        registry.chosen_settings(self.solver, dict(self.settings))
        if self.machine and len(chosen) > 1:
            raise InputError("--machine describes one machine: it goes with one --gpu")
        if self.machine and (self.host or self.lanes):
            raise InputError("--machine says what --host and --lanes say: give one")
        if network.ranks is None and network.named:
            raise InputError(f"{network.named} is of several GPUs: give --ranks too")
        if network.node_ranks is not None and not self._has_host:
            raise InputError("--node-ranks divides a host: give --host, --lanes or --machine too")
        self._check_precision()
        if network.ranks is not None:
            if loop.total is not None or loop.accumulate > 1:
                other = "--global-batch" if loop.total is not None else "--accumulate"
                raise InputError(f"--ranks counts one micro-batch per update: omit {other}")
            if len(chosen) > 1:
                raise InputError("--ranks are of equal GPUs: it goes with one --gpu")
        if self.lengths is not None and (network.ranks is not None or len(chosen) > 1):
            other = "--ranks" if network.ranks is not None else "several GPUs"
            raise InputError(f"--lengths is of one GPU: {other} can't be sized with it")
        if loop.total is not None and (self.batches is not None or loop.accumulate > 1):
            other = "--batch" if self.batches is not None else "--accumulate"
            raise InputError(f"--global-batch finds the micro-batch and its number: omit {other}")
        parse_prices(self.price, chosen)
        every = self.gpu.strip().lower() == ALL
        return with_dtypes(chosen, {self.dtype, loop.dtype}, note, every=every)

    def sizing(self, chosen: Sequence[Preset], report: Callable[[str], None], note: Note) -> Sizing:
        """Open the model and return the search. Raises MemplanError, one line.

        chosen: what `presets` returned.
        """
        rooms = [room_of(preset, self.machine, self.budget, self.reserve, note) for preset in chosen]
        rank, lengths = self._of_rank(rooms[0][0].machine), self._lengths_as_cut()

        def report_now(line: str) -> None:
            sizing.report(line)  # as it is when a trace is made

        subject = open_subject(
            self.model,
            self.length if lengths is None else lengths.longest,
            dtype=self.dtype,
            optimizer=self.optimizer,
            update=self.update,
            loop=self.loop,
            report=report_now,
            cached=self.cached,
        )
        sizing = Sizing(
            subject,
            rooms,
            rank=rank,
            lengths=lengths,
            batches=None if self.batches is None else [*self.batches],
            solver=self.solver,
            settings=self.settings,
            time_limit=self.time_limit,
            prices=parse_prices(self.price, chosen),
            report=report,
        )
        return sizing

    def _lengths_as_cut(self) -> Lengths | None:
        """Return the lengths of the samples, None if all have one. Raises InputError for a model's code."""
        if self.lengths is None:
            return None
        if not isinstance(self.model, str) or ".py" in Path(self.model).suffix:  # model.py:build too
            raise InputError(
                "--lengths is for a Hugging Face configuration, since a model's code decides its lengths: "
                "give the model's config.json"
            )
        return self.lengths if self.length is None else self.lengths.cut(self.length)

    def _check_precision(self) -> None:
        """Raise InputError, one line, for masters and mixed precision that can't be."""
        loop, asked = self.loop, "--param-dtype" if self.loop.param_dtype else "--master-weights"
        if loop.reduce_dtype is not None and loop.param_dtype is None:
            raise InputError("--reduce-dtype goes with --param-dtype bfloat16: else gradients have one dtype")
        if loop.param_dtype is not None and self.network.ranks is None:
            raise InputError(
                "--param-dtype is of several GPUs: give --ranks too; one GPU computes in bfloat16 by "
                "--autocast bf16, or by --dtype bfloat16 with --master-weights"
            )
        if loop.param_dtype is not None and loop.master_weights:
            raise InputError(
                "--param-dtype has float32 shares, which are the master weights: omit --master-weights"
            )
        if self.optimizer == "none" and (loop.param_dtype is not None or loop.master_weights):
            raise InputError(f"{asked} goes with --optimizer: without updates there are no float32 masters")

    @property
    def _has_host(self) -> bool:
        return bool(self.host or self.lanes or self.machine)

    def _of_rank(self, machine: Machine) -> Machine | None:
        """Return the machine of a rank of sharded training, None without --ranks. Raises InputError.

        Tensors can go to the host of the node if the user describes one.
        """
        if self.network.ranks is None:
            return None
        peers = self.network.peers(machine.links.peers, None)
        if self._has_host:
            return self.network.machine_of_rank(machine, peers)
        return replace(machine, links=Links(peers=peers))
