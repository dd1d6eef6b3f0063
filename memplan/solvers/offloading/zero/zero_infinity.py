"""ZeRO-Infinity: weights too are on the host or the disk, and come layer by layer, one layer ahead.

Nothing is minimised: a baseline, as users have it today. Every weight leaves after each use of its layer
whether the memory is short or not, the next layer's is fetched while one layer runs, and the updates run on
the CPU after the whole backward part. If the memory does not hold two layers, each is fetched when it is
needed. The first residency that fits the budget is taken. Assumptions, where to read: zero_offload.py.

Reference: S. Rajbhandari, O. Ruwase, J. Rasley, S. Smith, Y. He, ZeRO-Infinity: breaking the GPU memory wall
for extreme scale deep learning, SC 2021, doi:10.1145/3458817.3476205.

Linear in the edges, plus one simulation for each residency that is tried.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...links import linked_machine
from ...problem import Options, Problem, SolverResult, Status
from ...settings import SolverSettings, setting
from ..layers.cpu_updates import STATES, check_updates_wait, layers_updated_on_cpu, states_memory
from ..layers.refusals import first_that_fits
from .layers import activation_rules, activations_setting, zero_residency

NAME = "zero-infinity"


@dataclass(frozen=True)
class Settings(SolverSettings):
    """Settings of zero-infinity."""

    activations: str = activations_setting()
    states: str = setting(
        "auto",
        "where weights and optimizer states lie; auto: on the disk, if there is one and they would take more "
        "than half of the host",
        words=STATES,
    )


def solve(problem: Problem, options: Options) -> SolverResult:
    settings = options.chosen(Settings)
    machine = linked_machine(NAME, problem, "weights, gradients and optimizer states").machine
    layers = layers_updated_on_cpu(NAME, problem)
    check_updates_wait(NAME, layers)
    states = states_memory(NAME, machine, settings.states, layers)
    residencies = [
        zero_residency(layers, rule, states, states, ahead=ahead)
        for rule in activation_rules(settings.activations)
        # The faster first, rule by rule: one layer ahead takes the memory of two.
        for ahead in (True, False)
    ]
    return SolverResult(first_that_fits(NAME, problem, machine, residencies)[0], Status.HEURISTIC)
