"""O-ILP where every fraction is 0 or 1, by enumeration; no formula is shared.

A group's story runs over the steps of the cycle from its update: whether the CPU updates it, when its
gradient or its new version leaves, in which steps it is on the device. Each story says what it loads in every
step; stories of all groups, states and activations are combined, and the fastest combination that fits is
best.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from itertools import product
from math import inf

import numpy as np
from memplan.solvers.offloading.o_ilp.iteration import Carried, Group, Iteration, Limits
from numpy.typing import NDArray

DEVICE, HOST, D2H, H2D, CPU, COMPUTE = range(6)
Loads = NDArray[np.float64]
"""Shape (6, steps): bytes on device and host, bytes over the links, seconds of CPU and device."""


@dataclass(frozen=True)
class Story:
    """on_host: the CPU updates the group, so its states are there for ever."""

    loads: Loads
    on_host: bool


def best_time(iteration: Iteration, limits: Limits) -> float:
    """Seconds of the best iteration with whole groups; ∞ where none fits."""
    parts: list[list[Loads]] = [_groups(group, iteration.steps, limits) for group in iteration.groups]
    for number, options in enumerate(iteration.blocks):
        made, needed = iteration.forward_step(number), iteration.backward_step(number)
        rows: list[Loads] = []
        for option in options:
            loads = np.zeros((6, iteration.steps))
            loads[COMPUTE, made] += option.forward_seconds
            loads[COMPUTE, needed] += option.backward_seconds
            loads[DEVICE, made] += option.forward_peak
            loads[DEVICE, needed] += option.backward_peak
            offloaded = _waiting(option.kept_bytes, made, needed, iteration.steps, limits)
            rows += [loads + other for other in offloaded]
        parts.append(rows)
    parts += [_carried(carried, iteration.steps, limits) for carried in iteration.carried]
    fixed = np.zeros((6, iteration.steps))
    fixed[DEVICE] = iteration.base_bytes
    fixed[CPU] = limits.management
    fixed[COMPUTE, 2 * len(iteration.blocks) :] += iteration.after_seconds
    total = reduce(lambda sums, rows: _combined(sums, rows, limits), parts, fixed[None])
    if not len(total):
        return inf
    queues = [
        total[:, COMPUTE],
        total[:, CPU],
        total[:, D2H] / limits.d2h,
        total[:, H2D] / limits.h2d,
    ]
    return float(np.max(queues, axis=0).sum(axis=1).min())


def _combined(sums: Loads, rows: list[Loads], limits: Limits) -> Loads:
    """All pairs that fit, without doubles."""
    pairs = (sums[:, None] + np.array(rows)[None]).reshape(-1, *sums.shape[1:])
    fits = (pairs[:, DEVICE] <= limits.device_bytes + 1e-9).all(axis=1)
    if limits.host_bytes is not None:
        fits &= (pairs[:, HOST] <= limits.host_bytes + 1e-9).all(axis=1)
    return np.unique(pairs[fits], axis=0)


def _carried(carried: Carried, steps: int, limits: Limits) -> list[Loads]:
    return list(_waiting(carried.bytes, carried.made, carried.needed, steps, limits))


def _waiting(size: float, made: int, needed: int, steps: int, limits: Limits) -> Iterator[Loads]:
    """Stays; or leaves in one step, is away in some, and comes back in a later one."""
    stay = np.zeros((6, steps))
    stay[DEVICE, made + 1 : needed] = size
    yield stay
    for out in range(made, needed - 2):
        for gone in range(out + 1, needed - 1):
            for back in range(gone, needed):
                loads = np.zeros((6, steps))
                loads[DEVICE, made + 1 : gone] = size
                loads[DEVICE, back:needed] = size
                loads[D2H, out] = loads[H2D, back] = size
                loads[HOST, out:needed] = size
                if out == made:
                    loads[COMPUTE, out] = size / limits.d2h
                yield loads
    if needed - made == 2:
        loads = np.zeros((6, steps))
        loads[DEVICE, made + 1] = loads[D2H, made] = loads[H2D, made + 1] = loads[HOST, made : made + 2] = (
            size
        )
        loads[COMPUTE, made] = size / limits.d2h
        yield loads


def _groups(group: Group, steps: int, limits: Limits) -> list[Loads]:
    rows: list[Loads] = []
    for on_host in (False, True):
        if on_host and (group.last is None or group.host_seconds is None):
            continue
        weights = list(_weights(group, steps, limits, on_host=on_host))
        states = list(_states(group, steps, limits, on_host=on_host))
        rows += [a + b for a, b in product(weights, states)]
    return list(np.unique(np.array(rows), axis=0))


def _weights(group: Group, steps: int, limits: Limits, *, on_host: bool) -> Iterator[Loads]:
    origin = group.uses[0] if group.last is None else group.last
    used = {(use - origin) % steps for use in group.uses}
    for bits in product((True, False), repeat=steps - 1):
        there = (True, *bits)
        if not all(there[d] for d in used):
            continue
        if group.last is None:
            yield _lying(group, there, origin, steps, first=0, host_from=None if all(there) else 0)
        elif on_host:
            yield from _updated_on_host(group, there, origin, steps, limits)
        else:
            leaves = [None, *range(steps)] if all(there) else range(there.index(False))
            for out in leaves:
                loads = _lying(group, there, origin, steps, first=0, host_from=None if out is None else 0)
                if out is not None:
                    loads[D2H, (origin + out) % steps] += group.bytes
                    if out == 0:
                        loads[COMPUTE, origin] += group.bytes / limits.d2h
                loads[COMPUTE, origin] += group.device_seconds
                loads[DEVICE, origin] += group.gradient_bytes
                yield loads


def _updated_on_host(
    group: Group, there: tuple[bool, ...], origin: int, steps: int, limits: Limits
) -> Iterator[Loads]:
    """The gradient leaves in step `sent`, the update runs in a later one, the new weights come after it."""
    first = next((d for d in range(1, steps) if there[d]), steps)
    needed = min(((u - origin) % steps or steps) for u in group.uses)
    for sent in range(needed):
        for updated in range(sent + 1, needed):
            if first < updated + 2:
                continue
            loads = _lying(group, there, origin, steps, first=1, host_from=0)
            loads[DEVICE, origin] += group.gradient_bytes
            for d in range(1, sent + 1):
                loads[DEVICE, (origin + d) % steps] += group.gradient_bytes
            loads[D2H, (origin + sent) % steps] += group.gradient_bytes
            if sent == 0:
                loads[COMPUTE, origin] += group.gradient_bytes / limits.d2h
            loads[CPU, (origin + updated) % steps] += group.host_seconds or 0.0
            for d in range(sent, updated + 1):
                loads[HOST, (origin + d) % steps] += group.gradient_bytes
            yield loads


def _lying(
    group: Group, there: tuple[bool, ...], origin: int, steps: int, *, first: int, host_from: int | None
) -> Loads:
    """What the weights take where they are, and their fetches. first: from which step on a copy is of use."""
    loads = np.zeros((6, steps))
    for d in range(steps):
        t = (origin + d) % steps
        now, then = there[d], there[(d + 1) % steps]
        old = first == 1 and d == 0
        if now:
            loads[DEVICE, t] += group.bytes
        elif then:
            loads[DEVICE, t] += group.bytes
            loads[H2D, t] += group.bytes
        if old and then:
            loads[DEVICE, t] = inf  # the new version can't be there at once
    if host_from is not None:
        loads[HOST] += group.bytes
    return loads


def _states(group: Group, steps: int, limits: Limits, *, on_host: bool) -> Iterator[Loads]:
    """Needed on the device in the step of the update alone, or on the host for ever."""
    loads = np.zeros((6, steps))
    if not group.state_bytes:
        yield loads
        return
    if on_host:
        loads[HOST] += group.state_bytes
        yield loads
        return
    origin = group.last or 0
    for bits in product((True, False), repeat=steps - 1):
        there = (True, *bits)
        for out in [None] if all(there) else range(there.index(False)):
            loads = np.zeros((6, steps))
            for d in range(steps):
                t = (origin + d) % steps
                if there[d] or there[(d + 1) % steps]:
                    loads[DEVICE, t] += group.state_bytes
                if not there[d] and there[(d + 1) % steps]:
                    loads[H2D, t] += group.state_bytes
            if out is not None:
                loads[HOST] += group.state_bytes
                loads[D2H, (origin + out) % steps] += group.state_bytes
                if out == 0:
                    loads[COMPUTE, origin] += group.state_bytes / limits.d2h
            yield loads
