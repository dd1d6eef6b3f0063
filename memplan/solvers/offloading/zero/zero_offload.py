"""ZeRO-Offload: weights on the device, gradients and optimizer states on the host, updates on the CPU.

Nothing is minimised: a baseline, as users have it today. The first rule on activations that fits the budget
is taken (kept, recomputed, offloaded). Assumed: a chain of layers whose updates all have a mode on the CPU;
they run after the whole backward part, and the updated weights come back to the device right after each
update, one after the other.

Reference: J. Ren et al., ZeRO-Offload: democratizing billion-scale model training, USENIX ATC 2021,
arXiv:2101.06840.

    layers.py          the rules, for zero_infinity.py too; what the simulator does not know of the systems
    zero_infinity.py   weights leave too
    ../layers          layers, runs and offload intervals, from which the rules are made

Linear in the graph's edges, plus one simulation for each rule on activations that is tried.
"""

from __future__ import annotations

from dataclasses import dataclass

from ....graphs.machine import Memory
from ...links import linked_machine
from ...problem import Options, Problem, SolverResult, Status
from ...settings import SolverSettings
from ..layers.cpu_updates import check_updates_wait, layers_updated_on_cpu
from ..layers.refusals import first_that_fits
from .layers import activation_rules, activations_setting, zero_residency

NAME = "zero-offload"


@dataclass(frozen=True)
class Settings(SolverSettings):
    """Settings of zero-offload."""

    activations: str = activations_setting()


def solve(problem: Problem, options: Options) -> SolverResult:
    settings = options.chosen(Settings)
    machine = linked_machine(NAME, problem, "gradients and updated weights").machine
    layers = layers_updated_on_cpu(NAME, problem)
    check_updates_wait(NAME, layers)
    residencies = [
        zero_residency(layers, rule, Memory.HOST, None, ahead=True)
        for rule in activation_rules(settings.activations)
    ]
    return SolverResult(first_that_fits(NAME, problem, machine, residencies)[0], Status.HEURISTIC)
