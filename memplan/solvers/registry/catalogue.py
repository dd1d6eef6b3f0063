"""The catalogue of solvers by name: what each accepts, and its source.

A solver is a module with two names: `Settings`, a frozen dataclass whose fields (int, float, bool or str,
with defaults) are its options, and `solve(problem, options) -> SolverResult`. Modules are imported when first
used. Other packages add solvers through the entry-point group `memplan.solvers`: an entry point's name is
the solver's, its value names such a module.
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from ...graphs.errors import InputError, MissingPackageError
from ...graphs.undisturbed import undisturbed

GROUP = "memplan.solvers"
"""Group of entry points of plug-ins."""

SOLVERS = "memplan.solvers"
"""The package of memplan's own solvers."""


@dataclass(frozen=True)
class Entry:
    """A solver of the catalogue.

    module: that of `Settings` and `solve`; relative to `memplan.solvers`, or the full name of a plug-in's.
    needs_links: it moves data, and refuses a machine without links d2h and h2d (NotAcceptedError).
    sharded: it takes graphs of sharded training; others are not asked for one.
    """

    name: str
    module: str
    accepts: str
    source: str
    summary: str
    needs_links: bool = False
    sharded: bool = False


DEFAULT_SOLVER = "auto"

_OURS = (
    Entry(
        DEFAULT_SOLVER,
        ".auto.auto",
        "any graph",
        "memplan",
        "the default: search and others side by side on the available cores; the fastest answer",
        sharded=True,
    ),
    Entry(
        "store-all",
        ".recomputation.checkpointing.store_all",
        "any graph",
        "eager PyTorch",
        "the baseline schedule: nothing is recomputed",
    ),
    Entry(
        "layer-checkpoint",
        ".recomputation.checkpointing.layer_checkpoint",
        "training graphs with numbered layers",
        "PyTorch, torch.utils.checkpoint",
        "a checkpoint around each layer: its whole forward pass is recomputed",
    ),
    Entry(
        "torch-partitioner",
        ".recomputation.partitioner.torch_partitioner",
        "training graphs",
        "PyTorch, torch/_functorch/partitioners.py",
        "what torch.compile saves: minimum cuts and a knapsack, for many shares of the activations",
    ),
    Entry(
        "chen-sqrt",
        ".recomputation.checkpointing.chen_sqrt",
        "chains of blocks",
        "Chen et al. 2016, arXiv:1604.06174",
        "periodic checkpoints: segments of equal length, each recomputed",
    ),
    Entry(
        "revolve",
        ".recomputation.checkpointing.revolve",
        "chains of blocks",
        "Griewank & Walther 2000, doi:10.1145/347837.347846",
        "binomial checkpointing: least forward runs if all blocks are equal",
    ),
    Entry(
        "rotor",
        ".recomputation.checkpointing.rotor",
        "chains of blocks",
        "Beaumont et al. 2019, Inria RR-9302",
        "the fastest persistent schedule of a chain, by dynamic programming",
    ),
    Entry(
        "rk-rotor",
        ".recomputation.rockmate.rk_rotor",
        "chains of blocks",
        "Zhao et al. 2023, arXiv:2307.01236",
        "rotor with several options for each block that keep expensive activations",
    ),
    Entry(
        "checkmate",
        ".recomputation.checkmate.checkmate",
        "any graph; a MILP solver",
        "Jain et al. 2020, arXiv:1910.02653",
        "integer program: the fastest schedule that keeps the traced order",
    ),
    Entry(
        "rk-checkmate",
        ".recomputation.checkmate.rk_checkmate",
        "any graph; a MILP solver",
        "Zhao et al. 2023, arXiv:2307.01236",
        "checkmate with a limit on what is kept at the loss",
    ),
    Entry(
        "rockmate",
        ".recomputation.rockmate.rockmate",
        "chains of blocks; a MILP solver",
        "Zhao et al. 2023, arXiv:2307.01236",
        "rk-rotor with options for each block from rk-checkmate",
    ),
    Entry(
        "search",
        ".recomputation.search.search",
        "any graph",
        "memplan; annealing after Imanishi et al. 2023 (FastSA)",
        "the fastest sequence found in any order, memory exact at every step",
    ),
    Entry(
        "moccasin",
        ".recomputation.moccasin.moccasin",
        "any graph; OR-tools",
        "Bartan et al. 2023, arXiv:2304.14463",
        "constraint program: the fastest schedule in the traced order with few runs of each operation",
    ),
    Entry(
        "tw-remat",
        ".recomputation.tw_remat.tw_remat",
        "any graph",
        "Kumar et al. 2019, NeurIPS",
        "keeps graph separators, recomputes everything between them, then uses the remaining budget",
    ),
    Entry(
        "h-ilp",
        ".recomputation.hiremate.h_ilp",
        "training graphs; a MILP solver",
        "Zhao 2024, thesis, chapter 3",
        "clusters of clusters, combined at every level by an integer program",
    ),
    Entry(
        "hiremate",
        ".recomputation.hiremate.hiremate",
        "training graphs; a MILP solver",
        "Zhao 2024, thesis, chapter 3",
        "h-ilp's framework: any partitioner, any solver at any level",
    ),
    Entry(
        "joint",
        ".offloading.joint.joint",
        "any graph",
        "memplan",
        "recomputation, offloading and CPU updates in one search, judged by the simulated period",
        needs_links=True,
        sharded=True,
    ),
    Entry(
        "memferry",
        ".offloading.memferry.memferry",
        "training graphs with updates on the CPU",
        "Yao et al. 2025, INFOCOM",
        "weights come to the device or are read from host memory in place; the CPU updates them",
        needs_links=True,
    ),
    Entry(
        "stronghold",
        ".offloading.stronghold.stronghold",
        "chains of layers",
        "Sun et al. 2022, doi:10.1109/SC41404.2022.00076",
        "a working window of layers moves over the device; the CPU updates what has left it",
        needs_links=True,
    ),
    Entry(
        "offmate",
        ".offloading.offmate.offmate",
        "training graphs",
        "Zhao 2024, thesis, chapter 4",
        "weights, states, activations on device, host or disk, updates on the CPU, by a program over blocks",
        needs_links=True,
    ),
    Entry(
        "offload-greedy",
        ".offloading.weight_offload.offload_greedy",
        "any graph with weights",
        "Beaumont et al. 2022, hal-03580767",
        "weights leave the device between uses, by profit for each byte moved; then searched",
        needs_links=True,
    ),
    Entry(
        "greedy-star",
        ".offloading.weight_offload.greedy_star",
        "any graph with weights",
        "Beaumont et al. 2022, hal-03580767",
        "offload-greedy's greedy without the discount: a weight is copied out before each offload interval",
        needs_links=True,
    ),
    Entry(
        "l2l",
        ".offloading.weight_offload.l2l",
        "any graph with weights",
        "Pudipeddi et al. 2020, arXiv:2002.05645",
        "every weight on the host, on the device only while its layer runs",
        needs_links=True,
    ),
    Entry(
        "block-swap",
        ".offloading.block_swap.block_swap",
        "lists of blocks with frozen weights",
        "kohya-ss, sd-scripts and musubi-tuner",
        "`blocks_to_swap`: frozen blocks on the host, fetched ahead, forward and back; as few as fit",
        needs_links=True,
    ),
    Entry(
        "checkpoint-offload",
        ".offloading.checkpoint_offload.checkpoint_offload",
        "training graphs with numbered layers",
        "transformers, accelerate, Unsloth",
        "a checkpoint around each layer, its inputs on the host in between; as few layers as fit",
        needs_links=True,
    ),
    Entry(
        "activation-offload",
        ".offloading.by_hand.activation_offload",
        "training graphs with numbered layers",
        "Megatron-LM, NeMo, Transformer Engine",
        "activations of the first n layers on the host, back one layer ahead; as few layers as fit",
        needs_links=True,
    ),
    Entry(
        "optimizer-offload",
        ".offloading.by_hand.optimizer_offload",
        "training graphs with updates on the CPU",
        "torchao, Megatron-LM, NeMo",
        "states of a share of the parameters on the host, which updates these; as few as fit",
        needs_links=True,
    ),
    Entry(
        "paged-optimizer",
        ".offloading.by_hand.paged_optimizer",
        "training graphs with optimizer states",
        "bitsandbytes",
        "optimizer states on the host, each fetched for its update on the device; as few as fit",
        needs_links=True,
    ),
    Entry(
        "pofo",
        ".offloading.pofo.pofo",
        "chains of blocks",
        "Beaumont et al. 2021, NeurIPS",
        "recomputation and activation offload together, by dynamic programming",
        needs_links=True,
    ),
    Entry(
        "lohan",
        ".offloading.lohan.lohan",
        "chains of layers updated on the CPU",
        "Liao et al. 2024, arXiv:2403.06504",
        "states on the disk, updates alongside backward; activations swapped by the time each byte saves",
        needs_links=True,
    ),
    Entry(
        "zero-offload",
        ".offloading.zero.zero_offload",
        "chains of layers updated on the CPU",
        "Ren et al. 2021, arXiv:2101.06840",
        "gradients and optimizer states on the host, updates on the CPU after backward",
        needs_links=True,
    ),
    Entry(
        "fsdp",
        ".offloading.sharded.fsdp",
        "graphs of sharded training",
        "PyTorch, torch/distributed/fsdp",
        "FSDP2's policies: weights kept or regathered, layers checkpointed or not; the fastest that fits",
        needs_links=True,
        sharded=True,
    ),
    Entry(
        "fsdp-tuned",
        ".offloading.sharded.fsdp_tuned",
        "graphs of sharded training",
        "PyTorch, torch/distributed/fsdp; torchtitan",
        "fsdp tuned by hand: checkpoints and regathered weights in the first layers alone; never slower",
        needs_links=True,
        sharded=True,
    ),
    Entry(
        "fsdp-prefetch",
        ".offloading.sharded.fsdp_prefetch",
        "graphs of sharded training",
        "memplan",
        "FSDP2's policies that keep weights, with updates and gathers for the next iteration in backward",
        needs_links=True,
        sharded=True,
    ),
    Entry(
        "sharded-search",
        ".offloading.sharded.sharded_search",
        "graphs of sharded training",
        "memplan",
        "recomputation by search, each weight gathered for the run that reads it: near the minimum memory",
        needs_links=True,
        sharded=True,
    ),
    Entry(
        "zero-infinity",
        ".offloading.zero.zero_infinity",
        "chains of layers updated on the CPU",
        "Rajbhandari et al. 2021, doi:10.1145/3458817.3476205",
        "weights too on the host or disk, fetched one layer ahead",
        needs_links=True,
    ),
)


_BY_NAME = {entry.name: entry for entry in _OURS}


def entries() -> list[Entry]:
    """Return all solvers: memplan's own, then those of other packages by name. Imports no solver."""
    theirs = sorted(entry_points(group=GROUP), key=lambda point: point.name)
    return [*_OURS, *(_foreign(point) for point in theirs if point.name not in _BY_NAME)]


def entry(name: str) -> Entry:
    """Return the entry of a solver. Raises InputError if the name is unknown.

    Plug-ins' entry points are read only for a name that memplan does not have: reading takes milliseconds.
    """
    known = _BY_NAME if name in _BY_NAME else {entry.name: entry for entry in entries()}
    if name not in known:
        close = get_close_matches(name, known, 3, 0.4) or sorted(known)
        raise InputError(f"unknown solver {name!r}: did you mean {' or '.join(close)}?")
    return known[name]


def check_solver(name: object) -> None:
    """Raise InputError if there is no solver of this name."""
    if not isinstance(name, str):
        raise InputError(f"solver={name!r}: give a name, like 'auto'")
    entry(name)


def _foreign(point: EntryPoint) -> Entry:
    """Return the entry of a plug-in. Imports nothing: a solver is only imported when it is used."""
    package = point.dist.name if point.dist else point.module
    return Entry(point.name, point.value, "see its documentation", package, f"from the package {package}")


def module_of(entry: Entry) -> Any:
    """Return the solver's module. Raises MissingPackageError."""
    with undisturbed():
        if entry.module.startswith("."):
            return import_module(entry.module, SOLVERS)
        try:
            return EntryPoint(entry.name, entry.module, GROUP).load()
        except (ImportError, AttributeError) as error:
            raise MissingPackageError(f"the solver {entry.name} can't be loaded: {error}") from error
