"""Figures that others published of training on GPUs, beside what memplan estimates of the same programs.

    python benchmarks/published.py                      the rows without a result yet, then the table
    python benchmarks/published.py --only gpt2,t4-      those whose id has one of these texts
    python benchmarks/published.py --table              the table alone
    python benchmarks/published.py --rerun --only ID    again

published.yaml has the rows, results/published.csv what was estimated of each, row by row, so that an
interrupted run goes on; results/published.md gets the table. Half of the rows are for fitting the estimates'
constants and half for judging them: by a hash of the row's id, not by choice. What the operations of each row
demand is in results/published_work.json.gz, for published_fit.py.

A configuration is made by transformers, timm or torchvision, with random weights and without memory. For timm
and torchvision with a CPU-only PyTorch: pip install --no-deps --target FOLDER timm torchvision pillow, and
PYTHONPATH=FOLDER for the rows `timm-`, `small-` and `skb-`.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from select import select
from typing import IO, Any, NamedTuple

import yaml
from published_table import render
from published_work import load_work, save_work, work_of_schedule

HERE = Path(__file__).parent
ROWS = HERE / "published.yaml"
RESULTS, TABLE = HERE / "results" / "published.csv", HERE / "results" / "published.md"
FIGURES = ("low", "expected", "reserved", "high")
FIELDS = ("id", *FIGURES, "operations", "took", "date", "error")
LIMIT = 420.0
"""Seconds for a row, as `took` counts them: of the clock, on a machine that may have other work."""

Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", help="ids that contain one of these texts, by commas")
    parser.add_argument("--table", action="store_true", help="print the table alone")
    parser.add_argument("--rerun", action="store_true", help="estimate again what has a result")
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds for a row")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    rows = load_rows()
    if asked.row:
        by_id = {row["id"]: row for row in rows}
        estimate_rows(by_id[name] for name in asked.row.split(","))
        return
    if not asked.table:
        texts = asked.only.split(",") if asked.only else [""]
        run([row for row in rows if any(text in row["id"] for text in texts)], asked.limit, rerun=asked.rerun)
    page = render(rows, load_results(), load_work())
    TABLE.write_text(page)
    print(page)


def load_rows(source: str | None = None, kind: str = "ordinary") -> list[Row]:
    """Return the rows of a kind, each with its source and the defaults of the file.

    source: its key, if only its rows are wanted. kind: ordinary, or offload (published_offload.py).
    """
    document = yaml.safe_load(ROWS.read_text())
    models: dict[str, Row] = document["models"]
    rows = [{**document["defaults"], **row} for row in document["rows"] if source in (None, row["source"])]
    for row in rows:
        row["source"] = document["sources"][row["source"]]
        row["model"] = models[row["model"]]
    if len({row["id"] for row in rows}) < len(rows):
        raise ValueError("two rows have one id")
    return [row for row in rows if row["kind"] == kind]


# ── estimates ───────────────────────────────────────────────────────────────────────────────────────


def run(rows: list[Row], limit: float, *, rerun: bool) -> None:
    """Estimate the rows, and write each result when it is there.

    One process estimates row after row; one that takes too long is ended with its process.
    """
    results = load_results()
    pending = [row for row in rows if row["expressible"] is True and (rerun or row["id"] not in results)]
    while pending:
        ids = ",".join(row["id"] for row in pending)
        command = [sys.executable, __file__, "--row", ids]
        # Without a buffer: `select` does not see lines that were read ahead.
        with subprocess.Popen(command, stdout=subprocess.PIPE, bufsize=0) as worker:
            assert worker.stdout is not None
            while pending:
                begun, row = time.monotonic(), pending.pop(0)
                found = _line(worker.stdout, limit)
                if "work" in found:
                    save_work(row["id"], found.pop("work"))
                took = f"{time.monotonic() - begun:.0f}"
                common = {"id": row["id"], "took": took, "date": time.strftime("%Y-%m-%d")}
                results[row["id"]] = {**common, **found}
                _save(results.values())
                print(row["id"], found, file=sys.stderr, flush=True)
                if found.get("ended"):
                    break
            worker.kill()


def _line(stream: IO[bytes], limit: float) -> dict[str, Any]:
    """Return the worker's next result; `ended` with an error if there is none in time."""
    ready, _, _ = select([stream], [], [], limit)
    line = stream.readline() if ready else b""
    if line:
        return json.loads(line)
    return {"error": "the process ended" if ready else f"took more than {limit:.0f} s", "ended": True}


def _save(results: Iterable[dict[str, Any]]) -> None:
    with RESULTS.open("w", newline="") as file:
        writer = csv.DictWriter(file, list[str](FIELDS), restval="", extrasaction="ignore")
        writer.writeheader()
        writer.writerows(results)


def estimate_rows(rows: Iterable[Row]) -> None:
    """Print the result of each row as a line of JSON."""
    for row in rows:
        try:
            found = estimate_row(row)
        except Exception as error:  # a model may fail in any way; the others go on
            found = {"error": f"{type(error).__name__}: {error}".splitlines()[0][:200]}
        print(json.dumps(found), flush=True)


def load_results() -> dict[str, dict[str, Any]]:
    if not RESULTS.exists():
        return {}
    with RESULTS.open(newline="") as file:
        return {row["id"]: row for row in csv.DictReader(file)}


class Ordinary(NamedTuple):
    """The ordinary loop of a row. loop: makes it of a graph of one iteration. constant: bytes of kernels."""

    estimates: Any
    preset: Any
    loop: Callable[[Any], Any]
    constant: int


def ordinary(row: Row) -> Ordinary:
    """Trace a row's program."""
    from memplan.graphs.graph import Graph
    from memplan.graphs.machines.presets import described_preset
    from memplan.model.file import ModelFile
    from memplan.model.iteration import Iteration
    from memplan.profiling.profile.estimates import Estimates
    from memplan.profiling.profile.loops import BLOCK_BYTES, cost_of_adding, state_elements
    from memplan.profiling.profile.workspace import constant_bytes
    from memplan.sizing.accumulation import accumulating
    from memplan.sizing.eight_bit import with_eight_bit_states
    from memplan.sizing.ordinary_loop import ordinary_loop
    from memplan.updates.choice import OptimizerChoice

    def build(batch: int = row["batch"]) -> Any:
        return model_of(row, batch)

    kind = row["optimizer"]
    options = {"momentum": kind.get("momentum"), "fused": kind["kind"] == "fused"}
    choice = None if kind["name"] == "none" else OptimizerChoice(kind["name"], "after", **options)

    class File(ModelFile):
        def build(self, batch: int | None = None) -> Iteration:
            # `outputs = model(…)` holds them until the next assignment.
            kept = ("logits",) if row["outputs"] == "kept" else False
            return super().build(batch)._replace(outputs=kept)

    estimates = Estimates(File(f"{row['id']}.py", "build", build), choice, lambda _line: None)
    preset = described_preset(row["card"], row["host"], None)
    steps = max(row["accumulation"], 2 if row["gradients"] == "kept" else 1)
    copies = 0 if kind["kind"] in ("fused", "forloop", "8bit") else estimates.foreach_copies

    def loop(graph: Graph) -> Graph:
        if kind["kind"] == "8bit":
            elements = state_elements(estimates.program(row["batch"], preset))
            graph = with_eight_bit_states(graph, elements, BLOCK_BYTES)
        return ordinary_loop(accumulating(graph, steps, cost_of_adding(preset)), copies)

    # One of the thread of backward.
    return Ordinary(estimates, preset, loop, 2 * constant_bytes(preset.gpu))


def estimate_row(row: Row) -> dict[str, Any]:
    """Estimate a row as `plan size` does: bytes of an iteration, and what its operations demand."""
    from dataclasses import replace

    from memplan.planner.baseline import baseline, baseline_schedule
    from memplan.solvers.problem import Problem
    from memplan.solvers.registry import run as registry

    estimates, preset, loop, _constant = program = ordinary(row)
    machine = replace(preset.machine, device_capacity=None)
    graph = loop(estimates.graph(row["batch"], preset))
    budget, schedule = baseline(graph).peak, baseline_schedule(graph)
    if row["checkpointing"]:
        budget = int(1.5 * budget)
        problem = Problem(graph, budget, machine)
        schedule = registry.solve("layer-checkpoint", problem, 60.0, {}, lambda _line: None, 0.0).schedule
    return {
        **memory_of(row, program, graph, schedule, budget),
        "operations": len(graph.operations),
        "work": work_of_schedule(estimates, row["batch"], preset, graph, schedule),
    }


def memory_of(row: Row, program: Ordinary, graph: Any, schedule: Any, budget: int) -> dict[str, int]:
    """Return the bytes of a schedule of the row's graph.

    reserved: bytes of the segments of PyTorch's allocator, which are what nvidia-smi shows.
    """
    from dataclasses import replace

    from memplan.planner.addresses.caching_allocator import reserved_peak
    from memplan.planner.addresses.lifetimes import lifetimes
    from memplan.sizing.estimate_range import memory_span

    estimates, preset, loop, constant = program
    machine = replace(preset.machine, device_capacity=None)
    worst = loop(estimates.at_worst(row["batch"], preset))
    span = memory_span(graph, worst, schedule, budget, machine, constant, reserved_peak)
    reserved = constant + reserved_peak(lifetimes(graph, schedule, budget=budget, machine=machine))
    low, expected, high = map(int, span)
    return dict(zip(FIGURES, (low, expected, max(expected, reserved), high), strict=True))


def model_of(row: Row, batch: int) -> tuple[Any, ...]:
    """Return the row's module and inputs."""
    import torch

    torch.set_float32_matmul_precision("high" if row["tf32"] else "highest")
    library = row["model"]["library"]
    module, inputs, loss = (_text_model if library == "transformers" else _image_model)(row, batch)
    dtype = getattr(torch, row["dtype"])
    module = module.to(dtype).train()
    inputs = {name: value.to(dtype) if value.is_floating_point() else value for name, value in inputs.items()}
    if row["channels_last"]:
        module = module.to(memory_format=torch.channels_last)
        inputs["x"] = inputs["x"].to(memory_format=torch.channels_last)
    if row["quantize"]:
        module = _quantised(module, row).train()
    elif row["lora"]:
        from peft import LoraConfig, get_peft_model

        rank, targets = row["lora"]["r"], row["lora"]["targets"]
        kind = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=targets, task_type="CAUSAL_LM")
        module = get_peft_model(module, kind).train()
    if row["attention"] == "efficient":
        module.forward = _efficient_attention(module.forward)
    if row["masters"]:
        _with_masters(module, dtype)
    if row["chunks"]:
        return _in_chunks(module, row["chunks"]), inputs
    return _wrapped(module, loss, row["autocast"]), inputs


def _with_masters(module: Any, dtype: Any) -> None:
    """Make all parameters float32, which each module casts for itself, as FSDP2's mixed precision does."""
    import torch
    from torch.nn.utils import parametrize

    class Cast(torch.nn.Module):
        def forward(self, weight: Any) -> Any:
            return weight.to(dtype)

    for part in list(module.modules()):
        for name, parameter in list(part.named_parameters(recurse=False)):
            parameter.data = parameter.data.float()
            parametrize.register_parametrization(part, name, Cast(), unsafe=True)


def _in_chunks(module: Any, count: int) -> Any:
    """Return the language model with its loss in chunks of tokens, which checkpoints of layers recompute."""
    import torch
    from torch.nn import functional

    causal = module.get_base_model() if hasattr(module, "get_base_model") else module

    class Chunk(torch.nn.Module):
        def forward(self, hidden: Any, weight: Any, labels: Any) -> Any:
            logits = functional.linear(hidden, weight).float()
            return functional.cross_entropy(logits, labels, reduction="sum")

    class Whole(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.whole = module
            self.chunks = torch.nn.ModuleList(Chunk() for _ in range(count))

        def forward(self, input_ids: Any, labels: Any) -> Any:
            hidden = causal.model(input_ids=input_ids).last_hidden_state.flatten(0, 1)
            weight, labels = causal.lm_head.weight, labels.flatten()
            parts = zip(self.chunks, hidden.chunk(count), labels.chunk(count), strict=True)
            return {
                "loss": sum(chunk(part, weight, wanted) for chunk, part, wanted in parts) / labels.numel()
            }

    return Whole()


def _quantised(module: Any, row: Row) -> Any:
    """Return the module with linear layers in 4 bits, adapters, and other weights in the row's dtype."""
    import torch
    from memplan.model.lora import LowRank, with_adapters

    # peft's adapters would look for bitsandbytes' layers, which need the weights' values.
    with_adapters(module, LowRank(row["lora"]["r"], tuple(row["lora"]["targets"])), row["quantize"]["kind"])
    other = getattr(torch, row["quantize"]["others"])
    for parameter in module.parameters():
        if parameter.is_floating_point() and not parameter.requires_grad:
            parameter.data = parameter.data.to(other)
    return module


def _efficient_attention(forward: Any) -> Any:
    """Return a forward whose attention is the memory-efficient kernel, by keys and values for each head."""
    from unittest.mock import patch

    from torch.nn import functional
    from torch.nn.attention import SDPBackend, sdpa_kernel

    usual = functional.scaled_dot_product_attention

    def repeated(query: Any, key: Any, value: Any, *args: Any, **options: Any) -> Any:
        groups = query.size(-3) // key.size(-3)
        key, value = (one.repeat_interleave(groups, dim=-3) for one in (key, value))
        return usual(query, key, value, *args, **{**options, "enable_gqa": False})

    def limited(*args: Any, **options: Any) -> Any:
        with (
            sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION),
            patch.object(functional, "scaled_dot_product_attention", repeated),
        ):
            return forward(*args, **options)

    return limited


def _text_model(row: Row, batch: int) -> tuple[Any, dict[str, Any], Any]:
    import torch
    import transformers

    spec, length = row["model"], row["length"]
    kind = getattr(transformers, spec["class"])
    attention = "sdpa" if row["attention"] == "efficient" else row["attention"]
    extra = {} if kind.config_class.model_type == "t5" else {"attn_implementation": attention}
    config = kind.config_class(**spec["config"], **extra)
    config.use_cache = False
    if spec["class"].endswith("ImageClassification"):
        pixels = torch.zeros(batch, 3, spec["size"], spec["size"])
        return kind(config), {"pixel_values": pixels, "labels": torch.zeros(batch, dtype=torch.int64)}, None
    shape = (batch, length) if not spec["class"].endswith("Classification") else (batch,)
    tokens = torch.zeros(batch, length, dtype=torch.int64)
    return kind(config), {"input_ids": tokens, "labels": torch.zeros(shape, dtype=torch.int64)}, None


def _image_model(row: Row, batch: int) -> tuple[Any, dict[str, Any], Any]:
    import torch

    if not _LIBRARIES and find_spec("torchvision") and not _imports("torchvision"):
        # Its kernels are those of another PyTorch; it describes two of their operators when imported.
        _LIBRARIES.append(torch.library.Library("torchvision", "DEF"))
        for operator in ("nms", "qnms"):
            _LIBRARIES[-1].define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    name, size = row["model"]["name"], row["model"].get("size", 224)
    if row["model"]["library"] == "timm":
        import timm

        timm.layers.set_fused_attn(row["attention"] != "eager")
        module = timm.create_model(name)
    else:
        import torchvision

        module = getattr(torchvision.models, name)()
    inputs = {"x": torch.zeros(batch, 3, size, size), "labels": torch.zeros(batch, dtype=torch.int64)}
    return module, inputs, torch.nn.CrossEntropyLoss()


_LIBRARIES: list[Any] = []


def _imports(name: str) -> bool:
    try:
        import_module(name)
    except RuntimeError:
        return False
    return True


def _wrapped(module: Any, loss: Any, autocast: str | None) -> Any:
    """Return the module with its loss, in autocast if the row has it."""
    import torch

    mixed, dtype = autocast is not None, getattr(torch, autocast or "bfloat16")

    class Whole(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = module

        def forward(self, **inputs: Any) -> Any:
            with torch.autocast("cuda", dtype=dtype, enabled=mixed):
                if loss is None:
                    found = self.model(**inputs)
                    return {"loss": found.loss, "logits": found.logits}
                return loss(self.model(inputs["x"]), inputs["labels"])

    return Whole()


if __name__ == "__main__":
    main()
