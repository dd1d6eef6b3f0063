"""Rk-Checkmate's integer program: computations and tensors separately, by stages, with a limit at the loss.

Minimises Σ C_k (R_{t,k} + R'_{t,k}), t = k included and R' with its own time (erratum of 2.4.1), over the
schedules in stages (stages/slots.py): stage t ends with the first run of operation t. O(n · edges) variables.
Reference: X. Zhao, thesis, 2024, 2.4; Zhao et al., Rockmate, ICML 2023, arXiv:2307.01236.

The rows are those of model.py, numbered (1) to (7) there and in tensors.py: that program
tells computations from tensors too. Here come 2.6 and 2.19. In the paper's terms:

| paper             | here                                                                              |
|-------------------|-----------------------------------------------------------------------------------|
| R_{t,k}, R'_{t,k} | `runs`: operation k runs in stage t; R': in a variant with shorter `writes`       |
| S_{t,(k,i)}       | `needed`: k's contribution to tensor i exists; at every slot, not only at first   |
| P_{t,i}, alive    | `held`: tensor i is in memory; P as the stage begins                              |
| create, delete    | `new_bytes`; held before + new − held after                                       |
| 2.3, 2.4          | no columns; nor for slots that nothing later can use                              |
| 2.5               | the row of slot (t, t)                                                            |
| 2.6, 2.19         | below                                                                             |
| 2.7               | (2)                                                                               |
| 2.8               | (1)                                                                               |
| 2.9, 2.10         | phantoms are tensors here: what is saved for backward is traced as such           |
| 2.11, 2.12        | (7); a tensor of one producer has needed = held                                   |
| 2.13, 2.15        | (5)                                                                               |
| 2.14, 2.17        | `held` passes from stage to stage, and ends with the last use                     |
| 2.16              | (1) and (2): what is read later in the stage, or retained, is needed until then   |
| 2.18              | (4)                                                                               |

Why so: 2.16 with its hazards and κ has a weak relaxation; "a reader finds what it reads" says the same
tensor by tensor. The paper keeps a contribution from when it is made to the end of the stage's uses, so a
by-product can't be dropped and recomputed later in the stage; and what is made twice takes no bytes twice
(6). M_save limits what exists while the loss runs, its inputs among it: a block's output stays while later
blocks run. What the loss writes is left out.
"""

from __future__ import annotations

from ....graphs.graph import Graph, Phase
from ...stages.slots import Slot, last_stages
from .model import NEGLIGIBLE, StagedProgram, Unrolling, staged_program


def rk_checkmate_program(
    graph: Graph, peak: int, saved: int | None = None, *, least: bool = False, most_entries: int = 0
) -> StagedProgram:
    """Write Rk-Checkmate's program.

    peak, saved: M_peak and M_save in bytes, without what is resident from the start (None: no M_save).
    least: minimise the bytes instead, knowing that `peak` is enough.
    most_entries: raise TooLargeError beyond that many nonzeros (0: no limit).
    """
    losses = (graph.operations.phase == Phase.LOSS).nonzero()[0].tolist()
    if saved is None or not losses:
        return staged_program(graph, peak, least=least, most_entries=most_entries)
    return _WithLoss(
        graph=graph, peak=peak, saved=saved, loss=losses[0], least=least, most_entries=most_entries
    ).program()


class _WithLoss(Unrolling):
    def __init__(
        self, graph: Graph, peak: int, saved: int, loss: int, least: bool, most_entries: int
    ) -> None:
        last = last_stages(graph)
        last[loss] = loss  # (2.6)
        super().__init__(graph, peak, last, least, most_entries)
        self.loss, self.saved = loss, saved

    def write(self, slot: Slot) -> None:
        if slot == (self.loss, self.loss):
            self._limit_saved()
        super().write(slot)

    def _limit_saved(self) -> None:
        """Write (2.19)."""
        written: list[int] = self.graph.operations.writes[self.loss].tolist()
        sizes = ((column, self.tensors[x].size) for x, column in self.held.items() if x not in written)
        entries = [(column, size) for column, size in sizes if size > NEGLIGIBLE]
        self.model.row(entries, upper=(self.saved + 0.5) / self.unit)
