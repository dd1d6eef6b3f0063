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
from pathlib import Path

from memplan.graphs.machines.presets import find_preset, with_host
from memplan.graphs.units import format_bytes
from memplan.planner.baseline import any_size, baseline, baseline_schedule
from memplan.profiling.profile.workspace import constant_bytes
from memplan.sizing.estimate_range import usable
from memplan.sizing.loops import Loops
from memplan.sizing.subject import LoopOptions, open_subject
from memplan.sizing.words import with_article
from memplan.solvers.problem import Problem
from memplan.solvers.registry.run import solve
from plan_picture import LEFT, TOP, Curve, Picture, arrow

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


def arrows(picture: Picture, words: list[list[str]]) -> Iterator[str]:
    """Yield three arrows: to eager PyTorch's peak, to the card's memory, to the plan's peak.

    words: their lines.
    """
    card = picture.y(picture.limit)
    eager = picture.x(picture.dashed, picture.dashed.peak_share) - 6, picture.y(picture.dashed.peak) + 2
    plan = picture.x(picture.plan, picture.plan.peak_share) + 12, card + 6
    left, right, inside = LEFT + 12, LEFT + 474, picture.y(0.24 * picture.limit)
    yield from arrow(words[0], (left, TOP + 14), (left + 176, TOP + 26), eager)
    yield from arrow(words[1], (right, TOP + 14), (right + 80, TOP + 39), (right + 110, card - 3))
    yield from arrow(words[2], (LEFT + 205, inside), (LEFT + 245, inside - 18), plan, "inside")


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
    picture = Picture(plan, eager, card)
    note = "device memory over one iteration, simulated: estimated times, no GPU was used"
    given.output.write_text(picture.svg(title, note, arrows(picture, words)), encoding="utf-8")
    figures = found.figures
    print(title)
    print(f"eager    {before.time:.4f} s, peak {before.peak:,} B = {format_bytes(before.peak)}")
    print(f"card     {card:,} B = {format_bytes(card)}, after a reserve and {constant:,} B of cuBLAS")
    print(f"plan     {figures.time:.4f} s, {slower:+.2%}, peak {figures.peak:,} B, host {format_bytes(host)}")
    print(f"bound    {found.lower_bound:.4f} s, {found.status.value}, {found.seconds:.1f} s of search")
    print(f"written  {given.output}")


if __name__ == "__main__":
    main()
