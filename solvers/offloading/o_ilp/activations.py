"""The variables of O-ILP for what waits between two steps: activations (S_i^o, O_i^o), gradients. In bytes.

Per step between: what is stored on the device throughout it, what is fetched during it, what has left before.
"""

from __future__ import annotations

from dataclasses import dataclass

from .columns import Columns, Terms
from .iteration import Carried


@dataclass
class Activation:
    """Bytes made in one step and needed in another: stored[t], fetched[t], left[t] for the steps between."""

    made: int
    needed: int
    kept: Terms
    stored: dict[int, int]
    fetched: dict[int, int]
    left: dict[int, int]

    @staticmethod
    def of_block(program: Columns, b: int) -> Activation:
        """Add S_i^o and O_i^o of a block: what an option keeps, on the device or not."""
        options, chosen = program.iteration.blocks[b], program.choice[b]
        kept = [(c, o.kept_bytes / program.byte) for c, o in zip(chosen, options, strict=True)]
        made, needed = program.iteration.forward_step(b), program.iteration.backward_step(b)
        return Activation._between(program, made, needed, kept)

    @staticmethod
    def of_carried(program: Columns, carried: Carried) -> Activation:
        one = program.model.column(1.0, 1.0)
        return Activation._between(
            program, carried.made, carried.needed, [(one, carried.bytes / program.byte)]
        )

    @staticmethod
    def _between(program: Columns, made: int, needed: int, kept: Terms) -> Activation:
        between = range(made + 1, needed)
        stored = {t: program.column() for t in between}
        fetched = {t: program.fetching(needed - t) for t in between}
        left = dict(zip(between, program.leaving(len(between)), strict=True))
        loads, minus = program.loads, [(c, -v) for c, v in kept]
        for t in between:
            program.row("4.16", [(stored[t], 1.0), (left[t], 1.0), *minus], lower=0.0)
            out: Terms = [(left[t], 1.0), *([(left[t - 1], -1.0)] if t - 1 in left else [])]
            program.row("4.16", out, lower=0.0)
            loads.d2h[t - 1] += out
            if t - 1 == made:
                program.after_computation(made, left[t], 1.0)
            come: Terms = [(stored[t], -1.0), (fetched[t], -1.0)]
            if t + 1 < needed:
                program.row("4.16", [(stored[t + 1], 1.0), *come], upper=0.0)
            else:
                program.row("4.16", [*come, *kept], upper=0.0)
            loads.device[t] += [(stored[t], 1.0), (fetched[t], 1.0)]
            loads.h2d[t].append((fetched[t], 1.0))
            loads.host[t].append((left[t], 1.0))
        return Activation(made, needed, kept, stored, fetched, left)
