"""Block swap: the weights of frozen blocks on the host, fetched ahead of their use, forward and back.

What trainers of LoRAs for diffusion transformers do by hand, with `--blocks_to_swap`. Of a list of N blocks
N - n are on the device at a time. Forward begins with the first N - n: once block i has run, it leaves, and
block N - n + i is fetched in its place. Backward does the same from the end. So n blocks are fetched in each
pass. Activations are kept, or each block is checkpointed (`--gradient_checkpointing`).

Nothing is minimised but n, the blocks that are swapped: as few as the budget allows, by bisection, as more
slots are never more traffic. Assumed: lists of blocks with weights that nothing changes (a LoRA's base).

A baseline that is kinder than the tools:

- They copy the frozen weights back to the host, in turn with those that come (`swap_weight_devices`). Here a
  block is dropped, as its copy on the host is as good.
- In backward they release a block only when its predecessor's backward has ended. Here at its last use.
- FLUX's two lists: k of `--blocks_to_swap` is k // 2 double blocks and twice the rest of single ones. Here
  every list has its share of n, in single blocks; for FLUX.1 that is the same ratio.

Reference: kohya-ss, class ModelOffloader of `custom_offloading_utils.py` in sd-scripts and musubi-tuner.

    swap.py   begin here: which blocks are there at each step

Linear in the edges, plus log2 n simulations for each way with activations.
"""

from __future__ import annotations

from dataclasses import dataclass

from ....graphs.graph import Kind
from ....planner.bounds import time_bound
from ...candidates import require_backward
from ...links import linked_machine, worth_moving
from ...problem import Options, Problem, SolverResult
from ...settings import SolverSettings, setting
from ..layers.fewest import Policy, counts_of, fastest_of_fewest
from .swap import WAYS, BlockLists, block_lists

NAME = "block-swap"


@dataclass(frozen=True)
class Settings(SolverSettings):
    """Settings of block-swap."""

    blocks: int | None = setting(None, "blocks that are swapped; by default as few as fit", least=0)
    activations: str = setting(
        "auto",
        "kept, or a checkpoint around each block; auto: what is faster",
        words=("auto", *WAYS),
    )


def solve(problem: Problem, options: Options) -> SolverResult:
    settings, graph, clock = options.chosen(Settings), problem.graph, options.clock()
    machine = linked_machine(NAME, problem, "weights of frozen blocks", (Kind.PARAMETER,)).machine
    require_backward(NAME, graph)
    ways = WAYS if settings.activations == "auto" else (settings.activations,)
    policies, rows = list[Policy](), dict[str, BlockLists]()
    for activations in ways:
        # Windows are nested: what fits with n blocks swapped fits with n + 1.
        rows[activations] = lists = block_lists(NAME, graph, activations, worth_moving(machine))
        counts = counts_of(f"{NAME}: blocks", settings.blocks, lists.most)
        policies.append(Policy(activations, counts, lists.residency))
    fastest = fastest_of_fewest(NAME, problem, machine, policies, clock)
    options.report(f"{NAME}: {rows[fastest.policy.name].text(fastest.count)}")
    return SolverResult.of_heuristic(fastest.schedule, clock, time_bound(graph))
