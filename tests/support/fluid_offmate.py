"""A replay of an answer of O-ILP, as if weights were water: what is where, of which version, step by step.

Nothing of the program is used but its answer: how much is stored, copied and updated in each step. A group
is a part that the device updates and a part that the CPU does; of either it is known how much lies on the
device, how much of the current version on the host. An iteration is replayed from the group's update to the
next; what is read stale, lost, or does not fit is a fault. The time of a step is the largest of what its
queues carry.
"""

from __future__ import annotations

from memplan.graphs.arrays import Floats
from memplan.solvers.milp.linear import Linear
from memplan.solvers.offloading.o_ilp.model import OIlpProgram
from memplan.solvers.offloading.o_ilp.states import StateStocks
from memplan.solvers.offloading.o_ilp.weights import WeightStocks

SLACK = 1e-5


class FluidError(AssertionError):
    """The answer is no schedule."""


def fluid_time(program: OIlpProgram, x: Floats) -> float:
    """Seconds of an iteration. Raises FluidError."""
    steps, limits = program.iteration.steps, program.limits
    device = [float(base) for base in program.iteration.base_bytes]
    compute, d2h, h2d = [0.0] * steps, [0.0] * steps, [0.0] * steps
    cpu = [limits.management] * steps
    for stocks, states in zip(program.weights, program.states, strict=True):
        for add in (_Weights(stocks, x), _States(stocks, states, x)):
            for t in range(steps):
                device[t] += add.device[t]
                d2h[t] += add.d2h[t]
                h2d[t] += add.h2d[t]
                cpu[t] += add.cpu[t]
                compute[t] += add.compute[t]
    for number, options in enumerate(program.iteration.blocks):
        chosen = max(range(len(options)), key=lambda o: program.choice[number][o].value(x))
        option = options[chosen]
        for t, seconds, peak in (
            (program.iteration.forward_step(number), option.forward_seconds, option.forward_peak),
            (program.iteration.backward_step(number), option.backward_seconds, option.backward_peak),
        ):
            compute[t] += seconds
            device[t] += peak
    for t in range(steps):
        if device[t] > limits.device_bytes * (1 + SLACK):
            raise FluidError(f"step {t} holds {device[t]} of {limits.device_bytes}")
    return sum(max(compute[t], cpu[t], d2h[t] / limits.d2h, h2d[t] / limits.h2d) for t in range(steps))


class _Loads:
    def __init__(self, steps: int) -> None:
        self.device, self.d2h, self.h2d, self.cpu, self.compute = ([0.0] * steps for _ in range(5))


class _Weights(_Loads):
    """The part updated on the device leaves the device last and comes back first."""

    def __init__(self, stocks: WeightStocks, x: Floats) -> None:
        super().__init__(stocks.steps)
        group, rate = stocks.group, stocks.program.limits.d2h
        part = stocks.on_host.value(x)
        own = 1.0 - part
        gradient, at_host, updated = part, 0.0, 0.0  # of the CPU's part
        there, copied = [1.0, 0.0], 0.0  # the parts on the device; how much of the first the host has
        if group.last is None:
            there, copied = [1.0, 0.0], 1.0
        else:
            there = [own, 0.0]
        used = {(use - stocks.origin) % stocks.steps for use in group.uses}
        for d in range(stocks.steps):
            t = stocks.step(d)
            wanted = stocks.stored[d].value(x)
            begins = d == 0 and group.last is not None
            if d in used and not begins and sum(there) < 1 - SLACK:
                raise FluidError(f"step {t} reads weights of which {sum(there)} are there")
            if not begins:
                gone = max(0.0, sum(there) - wanted)
                from_cpu = min(gone, there[1])
                there[1] -= from_cpu
                there[0] -= gone - from_cpu
                if 1.0 - part - there[0] > copied + SLACK:
                    raise FluidError(f"step {t} loses weights")
            brought = stocks.fetched[d].value(x)
            self.device[t] += group.bytes * ((1.0 if begins else sum(there)) + brought)
            self.h2d[t] += group.bytes * brought
            if begins:
                self.device[t] += group.gradient_bytes
                self.compute[t] += own * group.device_seconds
            else:
                self.device[t] += group.gradient_bytes * gradient
            done = self._flow(x, stocks.updated, d)
            if done > at_host + SLACK:
                raise FluidError(f"step {t} updates before its gradient is there")
            out, sent = self._flow(x, stocks.left, d), self._flow(x, stocks.sent, d)
            self.cpu[t] += done * (group.host_seconds or 0.0)
            self.d2h[t] += out * group.bytes + sent * group.gradient_bytes
            if begins:
                self.compute[t] += (out * group.bytes + sent * group.gradient_bytes) / rate
            now = sum(there) if not begins else own
            brought = min(brought, max(0.0, stocks.stored[(d + 1) % stocks.steps].value(x) - now))
            first = min(brought, own - there[0])
            second = brought - first
            if second > SLACK and there[1] + second > updated + SLACK:
                raise FluidError(f"step {t} fetches stale weights")
            there = [there[0] + first, min(part, there[1] + second)]
            copied, at_host, updated, gradient = (
                copied + out,
                at_host + sent - done,
                updated + done,
                gradient - sent,
            )
        if sum(there) < 1 - SLACK or gradient > SLACK or updated < part - SLACK:
            raise FluidError("the next iteration starts without its weights")

    @staticmethod
    def _flow(x: Floats, stock: list[Linear], d: int) -> float:
        return (stock[d + 1] - stock[d]).value(x) if d + 1 < len(stock) else 0.0


class _States(_Loads):
    def __init__(self, weights: WeightStocks, states: StateStocks, x: Floats) -> None:
        super().__init__(weights.steps)
        group, rate = weights.group, weights.program.limits.d2h
        if not states.stored:
            return
        own = 1.0 - weights.on_host.value(x)
        there, copied = own, 0.0
        for d in range(weights.steps):
            t = weights.step(d)
            there = min(there, max(states.stored[d].value(x), own if d == 0 else 0.0))
            if own - there > copied + SLACK:
                raise FluidError(f"step {t} loses states")
            brought = states.fetched[d].value(x)
            out = _Weights._flow(x, states.left, d)
            self.device[t] += group.state_bytes * (there + brought)
            self.h2d[t] += group.state_bytes * brought
            self.d2h[t] += group.state_bytes * out
            if d == 0:
                self.compute[t] += out * group.state_bytes / rate
            there, copied = there + brought, copied + out
        if there < own - SLACK:
            raise FluidError("the next update has no states")
