"""Time and memory of PyTorch's eager loop on this card, for the rows of ../published.yaml that name it.

    python benchmarks/gpu/measured.py --source memplan-h100 --output measured.jsonl [--only gpt2]

Each row is measured as others publish theirs: forward, backward, `zero_grad`, the optimizer's step; the time
is the median of iterations after a warm-up, the peaks are the allocator's. A line of JSON per row, written as
it comes; a run with the same file goes on where it stopped. The figures then go into published.yaml by hand.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
from pathlib import Path
from statistics import median
from time import monotonic, perf_counter
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

import published

WARM_UP, ROUNDS = 3, 10
LONG = 1.5
"""Seconds of measured iterations after which a row has enough of them."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--source", required=True, help="key of published.yaml")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--only", default="", help="ids that contain one of these texts, by commas")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--device", default="cuda")
    asked = parser.parse_args()
    end = monotonic() + 60 * asked.minutes
    lines = asked.output.read_text().splitlines() if asked.output.exists() else []
    done = {row["id"] for row in map(json.loads, lines) if "error" not in row}
    for row in published.load_rows(asked.source):
        wanted = any(text in row["id"] for text in asked.only.split(","))
        if not wanted or row["id"] in done or monotonic() > end:
            continue
        try:
            found = measured(row, asked.device)
        except Exception as error:  # out of memory, say: other rows go on
            found = {"error": f"{type(error).__name__}: {error}".splitlines()[0][:200]}
        gc.collect()
        if asked.device == "cuda":
            torch.cuda.empty_cache()
        line = json.dumps({"id": row["id"], **found})
        print(line, flush=True)
        with asked.output.open("a") as file:
            file.write(line + "\n")


def measured(row: dict[str, Any], device: str) -> dict[str, Any]:
    """Measure a row: seconds of an iteration, bytes allocated and reserved at most."""
    started = perf_counter()
    torch.manual_seed(0)
    on_card = device == "cuda"
    with torch.device(device):
        module, inputs = published.model_of(row, row["batch"])
    module = module.to(device)
    inputs = {name: _drawn(value, row).to(device) for name, value in inputs.items()}
    optimizer = _optimizer(row, module)
    made = perf_counter() - started
    if on_card:
        torch.cuda.reset_peak_memory_stats()
    times: list[float] = []
    outputs: Any = None  # of a loop that says `outputs = model(…)`: held until the next
    while len(times) < WARM_UP + ROUNDS:
        begun = perf_counter()
        found = module(**inputs)
        loss = found["loss"] if isinstance(found, dict) else found
        outputs = found if row["outputs"] == "kept" else None
        del found
        loss.backward()
        del loss
        if optimizer is None:
            module.zero_grad()
        else:
            optimizer.step()
            optimizer.zero_grad()
        if on_card:
            torch.cuda.synchronize()
        times.append(perf_counter() - begun)
        if len(times) > WARM_UP + 1 and sum(times[WARM_UP:]) > LONG:
            break
    del outputs
    result: dict[str, Any] = {"time": median(times[WARM_UP:]), "rounds": len(times) - WARM_UP, "made": made}
    if on_card:
        result |= {
            "allocated": torch.cuda.max_memory_allocated(),
            "reserved": torch.cuda.max_memory_reserved(),
            "card": torch.cuda.get_device_name(),
            "torch": torch.__version__,
        }
    return result


def _drawn(value: torch.Tensor, row: dict[str, Any]) -> torch.Tensor:
    """Return random values in place of zeros: equal tokens all write one row of an embedding's gradient."""
    if value.is_floating_point():
        return torch.randn_like(value)
    size = row["model"].get("config", {}).get("vocab_size", 1000)
    classes = 2 if value.dim() == 1 and row["model"]["library"] == "transformers" else min(size, 1000)
    return torch.randint_like(value, classes)


def _optimizer(row: dict[str, Any], module: torch.nn.Module) -> torch.optim.Optimizer | None:
    kind = row["optimizer"]
    if kind["name"] == "none":
        return None
    weights = [x for x in module.parameters() if x.requires_grad]
    named: dict[str, dict[str, Any]] = {"unknown": {}, "forloop": {"foreach": False}}
    options = named.get(kind["kind"], {kind["kind"]: True})
    if kind["name"] == "sgd":
        return torch.optim.SGD(weights, 1e-3, momentum=kind.get("momentum") or 0.0, **options)
    return {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam}[kind["name"]](weights, 1e-5, **options)


if __name__ == "__main__":
    main()
