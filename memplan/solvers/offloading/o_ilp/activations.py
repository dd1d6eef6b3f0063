"""The variables of O-ILP for what waits between two steps: activations (S_i^o, O_i^o), gradients. In bytes.

Per step between: what is stored on the device throughout it, what is fetched during it, what has left before.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...milp.linear import ZERO, Linear, total
from .columns import Columns
from .iteration import Carried


@dataclass
class Activation:
    """Bytes made in one step and needed in another: stored[t], fetched[t], left[t] for the steps between."""

    made: int
    needed: int
    kept: Linear
    stored: dict[int, Linear]
    fetched: dict[int, Linear]
    left: dict[int, Linear]

    @staticmethod
    def of_block(program: Columns, b: int) -> Activation:
        """Add S_i^o and O_i^o of a block: what an option keeps, on the device or not."""
        options, chosen = program.iteration.blocks[b], program.choice[b]
        kept = total(c * (o.kept_bytes / program.byte) for c, o in zip(chosen, options, strict=True))
        made, needed = program.iteration.forward_step(b), program.iteration.backward_step(b)
        tensors = {x for option in options for x in option.kept}
        stay = not tensors.isdisjoint(program.iteration.stays)
        return Activation._between(program, made, needed, kept, stay=stay)

    @staticmethod
    def of_carried(program: Columns, carried: Carried) -> Activation:
        size = program.model.variable(1.0, 1.0) * (carried.bytes / program.byte)
        stay = not program.iteration.stays.isdisjoint(carried.tensors)
        return Activation._between(program, carried.made, carried.needed, size, stay=stay)

    @staticmethod
    def _between(program: Columns, made: int, needed: int, kept: Linear, *, stay: bool) -> Activation:
        between = range(made + 1, needed)
        stored = {t: program.variable() for t in between}
        fetched = {t: program.fetching(needed - t) for t in between}
        left = dict(zip(between, program.leaving(len(between)), strict=True))
        loads = program.loads
        for t in between:
            # What is neither on the device nor out would be lost.
            program.add("4.16", stored[t] + left[t] >= kept)
            if stay:
                program.add("4.16", stored[t] >= kept)
            out = left[t] - left.get(t - 1, ZERO)
            program.add("4.16", out >= 0.0)
            loads.d2h[t - 1].append(out)
            # Its data is complete only at the step's end, so the copy out lengthens the step (L_t).
            if t - 1 == made:
                program.after_computation(made, left[t], 1.0)
            come = stored[t] + fetched[t]
            program.add("4.16", (stored[t + 1] if t + 1 < needed else kept) <= come)
            loads.device[t].append(come)
            loads.h2d[t].append(fetched[t])
            loads.host[t].append(left[t])
        return Activation(made=made, needed=needed, kept=kept, stored=stored, fetched=fetched, left=left)
