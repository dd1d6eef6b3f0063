"""The README's picture: a LoRA of a Llama-3-8B on a card of 24 GB, eager PyTorch and a plan. Simulated.

Graphs and their times are estimated as `plan size` does: of the model's configuration, without weights and
without a GPU. eager PyTorch is the loop that people have, with the allocator of any size; the plan is the
answer of `auto` within what the card leaves. The figures go to standard output, and into the picture.

    python benchmarks/readme_picture.py [--batch 2] [--length 1024] [--seconds 60] [-o FILE.svg]
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from html import escape
from itertools import groupby
from pathlib import Path

import numpy as np
from memplan.cli.size.loop_options import LoopOptions
from memplan.cli.size.loops import Loops
from memplan.cli.size.model import open_subject
from memplan.cli.size.words import with_article
from memplan.graphs.graph import Graph, Kind
from memplan.graphs.machine import Machine, Memory
from memplan.graphs.machines.presets import find_preset, with_host
from memplan.graphs.units import duration, format_bytes
from memplan.planner.addresses.lifetimes import lifetimes
from memplan.planner.baseline import any_size, baseline, baseline_schedule
from memplan.planner.schedule.schedule import Schedule
from memplan.planner.simulator.timeline import timeline
from memplan.planner.sizing.estimate_range import usable
from memplan.report.colours import KIND
from memplan.report.memory_timeline import moments
from memplan.report.picture import highest
from memplan.runtime.profile.workspace import constant_bytes
from memplan.solvers.problem import Problem
from memplan.solvers.registry.run import solve

LLAMA_3_8B = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
    "use_cache": False,
}
GPU, HOST, RANK = "rtx4090", "64GB", 16

_LEFT, _TOP, _WIDTH, _HEIGHT = 64, 70, 660, 300
_STYLE = """
text { font: 13px system-ui, sans-serif; fill: #1d2127; } text.soft { fill: #626a75; }
.title { font-weight: 600; } .ground { fill: #fcfcfb; }
.eager { fill: none; stroke: #626a75; stroke-width: 1.6; stroke-dasharray: 5 4; }
.card { stroke: #b3261e; stroke-width: 1.6; } .arrow { fill: none; stroke: #1d2127; stroke-width: 1.3; }
.head { fill: #1d2127; } text.inside { fill: #fff; font-weight: 600; }
@media (prefers-color-scheme: dark) {
  text, .head { fill: #e6e8eb; } text.soft { fill: #98a1ac; } text.inside { fill: #fff; }
  .ground { fill: #15181c; }
  .eager { stroke: #98a1ac; } .card { stroke: #ff8a80; } .arrow { stroke: #e6e8eb; }
}
"""
_NAMES = {
    Kind.OPTIMIZER_STATE: "optimizer states",
    Kind.PARAMETER: "weights",
    Kind.ACTIVATION: "activations",
    Kind.GRADIENT: "gradients of activations",
}


Point = tuple[float, float]
"""Pixels from the left and from the top."""


class Curve:
    """Bytes on the device over one iteration, by kind, in columns. seconds: of the iteration."""

    def __init__(self, graph: Graph, schedule: Schedule, machine: Machine, budget: int | None) -> None:
        line = timeline(graph, schedule, budget=budget, machine=machine)
        rows = lifetimes(graph, schedule, Memory.DEVICE, budget=budget, machine=machine)
        found = moments(graph, line, rows)
        self.seconds = max(line.period, float(found.at[-1]))
        self.sums = highest(found.at, found.sums, np.linspace(0.0, self.seconds, _WIDTH + 1))

    @property
    def peak(self) -> int:
        return int(self.sums.sum(axis=1).max())


def _path(tops: list[int], ceiling: float, width: int) -> str:
    """Return a step curve over the first `width` pixels."""
    path, x = f"M{_LEFT},{_y(tops[0], ceiling):.1f}", float(_LEFT)
    for top, columns in groupby(tops):
        x += len(list(columns)) * width / len(tops)
        path += f"V{_y(top, ceiling):.1f}H{x:.1f}"
    return path


def _y(size: float, ceiling: float) -> float:
    return _TOP + _HEIGHT * (1 - size / ceiling)


def _text(line: str, x: float, y: float, kind: str = "", anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}">{escape(line)}</text>'


def _arrow(text: list[str], at: Point, start: Point, end: Point, kind: str = "") -> Iterator[str]:
    """Yield lines of text that begin at a point, and an arrow. kind: class of the text."""
    yield from (_text(line, at[0], at[1] + 17 * number, kind) for number, line in enumerate(text))
    path = f"M{start[0]:.0f},{start[1]:.0f} L{end[0]:.0f},{end[1]:.0f}"
    yield f'<path class="arrow" marker-end="url(#head)" d="{path}"/>'


def picture(eager: Curve, plan: Curve, card: int, title: str, words: list[list[str]]) -> str:
    """Return the SVG. card: bytes that it leaves. words: the lines at the three arrows."""
    ceiling, longest = 1.12 * max(eager.peak, card), max(eager.seconds, plan.seconds)
    foot = _TOP + _HEIGHT + 28
    note = "device memory over one iteration, simulated: estimated times, no GPU was used"
    body = [_text(title, _LEFT, 24, "title"), _text(note, _LEFT, 44, "soft")]
    sizes = range(0, int(ceiling) + 1, 8 * 2**30)
    body += [_text(f"{size >> 30} GiB", _LEFT - 8, _y(size, ceiling) + 4, "soft", "end") for size in sizes]
    body.append(_text(duration(longest), _LEFT + _WIDTH, foot - 10, "soft", "end"))
    width, stacked = round(_WIDTH * plan.seconds / longest), np.cumsum(plan.sums, axis=1)
    for kind in reversed(range(stacked.shape[1])):
        path = _path(stacked[:, kind].tolist(), ceiling, width)
        body.append(f'<path d="{path}V{_y(0, ceiling):.0f}H{_LEFT}Z" fill="{KIND[kind]}"/>')
    tops = eager.sums.sum(axis=1).tolist()
    curve = _path(tops, ceiling, round(_WIDTH * eager.seconds / longest))
    y = _y(card, ceiling)
    body.append(f'<path class="eager" d="{curve}"/>')
    body.append(f'<line class="card" x1="{_LEFT}" x2="{_LEFT + _WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>')
    peak = _LEFT + int(np.argmax(tops)) * eager.seconds / longest - 6, _y(eager.peak, ceiling) + 2
    most = _LEFT + int(np.argmax(plan.sums.sum(axis=1))) * width / _WIDTH
    left, right, inside = _LEFT + 12, _LEFT + 474, _y(0.24 * card, ceiling)
    body += _arrow(words[0], (left, _TOP + 14), (left + 176, _TOP + 26), peak)
    body += _arrow(words[1], (right, _TOP + 14), (right + 80, _TOP + 39), (right + 110, y - 3))
    start = _LEFT + 245, inside - 18
    body += _arrow(words[2], (_LEFT + 205, inside), start, (most + 12, y + 6), "inside")
    body += _legend([kind for kind in _NAMES if plan.sums[:, kind].max() > 0.01 * plan.peak], foot)
    size, name = f'viewBox="0 0 {_LEFT + _WIDTH + 16} {foot + 24}"', escape(title)
    head = '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
    head += 'orient="auto">'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{name}">'
        f'<style>{_STYLE}</style><defs>{head}<path class="head" d="M0,0 L8,4 L0,8 Z"/></marker></defs>'
        f'<rect class="ground" width="100%" height="100%"/>{"".join(body)}</svg>\n'
    )


def _legend(kinds: list[Kind], y: int) -> Iterator[str]:
    x = float(_LEFT)
    for kind in kinds:
        yield f'<rect x="{x:.0f}" y="{y}" width="11" height="11" fill="{KIND[kind]}"/>'
        yield _text(_NAMES[kind], x + 16, y + 10)
        x += 34 + 7 * len(_NAMES[kind])
    yield f'<path class="eager" d="M{x:.0f},{y + 6} h24"/>'
    yield _text("eager PyTorch", x + 30, y + 10)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("-o", "--output", type=Path, default=Path("docs/pictures/llama-lora.svg"))
    given = parser.parse_args()
    report = partial(print, file=sys.stderr)
    preset = with_host(find_preset(GPU), HOST)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(LLAMA_3_8B))
        lora = LoopOptions(lora=f"r={RANK}")
        subject = open_subject(folder, given.length, None, "adamw", "after", lora, report)
        loops = Loops(subject.estimates, preset)
        usual, planned = loops.ordinary(given.batch).graph, loops.planned(given.batch).graph
    assert preset.machine.device_capacity is not None
    constant = constant_bytes(preset.gpu)
    card = usable(preset.machine.device_capacity, None) - constant
    machine = preset.machine
    found = solve("auto", Problem(planned, card, machine), given.seconds, report=report)
    eager = Curve(usual, baseline_schedule(usual), any_size(usual), None)
    plan = Curve(planned, found.schedule, machine, card)
    before = baseline(usual)
    slower = found.figures.time / before.time - 1
    host = found.figures.host_peak
    title = f"LoRA of Llama-3-8B on {preset.gpu.name}: {given.batch} × {given.length:,} tokens, bfloat16"
    words = [
        ["eager PyTorch needs", f"{format_bytes(before.peak)}: out of memory"],
        [f"{with_article(preset.gpu.name)} leaves", format_bytes(card)],
        [
            f"the plan: {format_bytes(found.figures.peak)}, {slower:+.1%} time,",
            f"up to {format_bytes(host)} wait in host memory",
        ],
    ]
    given.output.write_text(picture(eager, plan, card, title, words), encoding="utf-8")
    figures = found.figures
    print(title)
    print(f"eager    {before.time:.4f} s, peak {before.peak:,} B = {format_bytes(before.peak)}")
    print(f"card     {card:,} B = {format_bytes(card)}, after a reserve and {constant:,} B of cuBLAS")
    print(f"plan     {figures.time:.4f} s, {slower:+.2%}, peak {figures.peak:,} B, host {format_bytes(host)}")
    print(f"bound    {found.lower_bound:.4f} s, {found.status.value}, {found.seconds:.1f} s of search")
    print(f"written  {given.output}")


if __name__ == "__main__":
    main()
