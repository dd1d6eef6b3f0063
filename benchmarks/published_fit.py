"""Fit the efficiencies of estimates to published times, by the half of the rows that is for fitting.

    python benchmarks/published_fit.py            fits, prints, and writes profiling/profile/efficiencies.yaml
    python benchmarks/published_fit.py --dry-run  prints alone

The least sum of Huber losses of log(estimated / published), and of squared distances of the values'
logarithms from what one would assume without rows (PRIORS): a value that no row depends on stays there, one
that few rows depend on moves little. A value at a time, up or down, until no step helps. Rows by one author
resemble each other, so a row weighs 1 / √(rows of its source).

Products in half precision are measured, not assumed: product_rates.csv has their rates by size, in 10^12
FLOP/s, in bfloat16. Each is the median of 30 to 312 products of random matrices, of 256 rows and columns or
more, and of three frameworks' collectors. Source: aic-core/src/aiconfigurator_core/systems/data of
github.com/ai-dynamo/aiconfigurator at 095f58a (Apache-2.0), by SGLang 0.5.14, TensorRT-LLM 1.3.0rc20 and
vLLM 0.24.0 (A100: 0.5.10, 1.0.0, 0.14.0). RTX PRO 6000 is the server edition. `product_law` fits the model
of efficiency.py to the table alone: `unhidden` is its value; the shares and the kernel's least time are where
those of the rows start.
"""

from __future__ import annotations

import argparse
import csv
from collections import Counter
from collections.abc import Container
from math import exp, log, sqrt
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml
from memplan.graphs.graph import Phase
from memplan.graphs.machines.gpus import Gpu, find_gpu
from memplan.graphs.machines.presets import find_preset
from memplan.profiling.profile.efficiency import ADA, HALVES, TABLE, efficiencies, efficiencies_of
from memplan.profiling.profile.estimate import update_seconds
from memplan.profiling.profile.roofline import (
    CONVOLUTION_KINDS,
    GROUPED,
    KINDS,
    PRODUCTS,
    WITHOUT_TENSOR_CORES,
    attention_seconds,
    kind_and_rate,
)
from memplan.profiling.profile.roofline import Work as Operation
from published import load_rows
from published_table import half
from published_work import Work, iteration_seconds, load_work, update_launches

RATES = Path(__file__).parent / "product_rates.csv"
KNEE = 0.3
"""A row that is wrong by more than this, in logarithms, counts linearly."""
SPREAD = 0.2
"""Difference, in logarithms, that rows which are estimated well still have."""


class Prior(NamedTuple):
    """An assumed value, and by what its logarithm may differ; 0: it is not fitted."""

    value: float
    spread: float


PRIORS = {
    "compute": Prior(0.7, 0.35),
    "kinds": Prior(1.0, 0.3),
    "seconds bandwidth": Prior(0.8, 0.15),
    "seconds serial": Prior(0.5, 0.4),
    "seconds library": Prior(50e-6, 0.5),
    "seconds host": Prior(1.5, 0.3),
    "launch forward": Prior(15e-6, 0.7),
    "launch loss": Prior(15e-6, 0.0),
    "launch backward": Prior(10e-6, 0.7),
    "launch update": Prior(5e-6, 0.0),
    # All kinds relative to it: the shares of rates say the rest.
    "kinds product": Prior(1.0, 0.0),
    f"kinds {GROUPED}": Prior(0.2, 0.3),
    "kinds grouped convolution, channels last": Prior(0.1, 0.3),
    # Its constants are those of published kernels.
    "kinds attention": Prior(1.0, 0.0),
    # xformers' kernel reaches a quarter to a third of an A100's rate (FlashAttention-2, figure 4).
    "kinds efficient attention": Prior(0.35, 0.2),
}

SPREADS = {"products": 0.1, "seconds kernel": 0.2, "seconds unhidden": 0.0}
"""Spreads of the priors that product_law sets. Medians of the table's three frameworks differ by 0.06."""

Values = dict[tuple[str, str], float]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--dry-run", action="store_true", help="do not write the values")
    asked = parser.parse_args()
    work = load_work()
    rows = [row for row in load_rows() if row["id"] in work and row["time"] and row["sourced"]]
    fitted, start = fit([row for row in rows if half(row) == "fit"], work)
    for name, value in fitted.items():
        print(f"{' '.join(name):36} {value:10.3g}   assumed {start[name]:.3g}")
    document = to_document(fitted)
    if not asked.dry_run:
        write(document, Path(TABLE))
    reached = efficiencies_of(document)
    for kind in ("fit", "judge"):
        pairs = [(iteration_seconds(row, work[row["id"]], reached), row) for row in rows if half(row) == kind]
        ratios = np.array([estimated / row["time"] for estimated, row in pairs])
        near = np.mean(np.abs(np.log(ratios)) <= log(1.4))
        print(f"{kind}: {len(ratios)} rows, median {np.median(ratios):.2f}, within 1.4: {near:.0%}")


def to_document(values: Values) -> dict[str, dict[str, float]]:
    document: dict[str, dict[str, float]] = {}
    for (group, name), value in values.items():
        document.setdefault(group, {})[name] = float(f"{value:.3g}")
    return document


def write(document: dict[str, dict[str, float]], path: Path) -> None:
    head = "# Written by benchmarks/published_fit.py. What the values mean: efficiency.py.\n"
    path.write_text(head + yaml.safe_dump(document, sort_keys=False))


# ── the fit ─────────────────────────────────────────────────────────────────────────────────────────


class Measured(NamedTuple):
    """The median rate of products of one size on a GPU, in FLOP/s."""

    gpu: Gpu
    flops: float
    bytes: float
    rate: float


def measured_products() -> list[Measured]:
    with RATES.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file, skipinitialspace=True))
    return [
        Measured(find_gpu(name), flops, flops / float(row["FLOP/byte"]), float(row[name]) * 1e12)
        for row in rows
        for flops in [float(row["GFLOP"]) * 1e9]
        for name in row
        if name not in ("GFLOP", "FLOP/byte")
    ]


def product_law() -> Values:
    """Return the values that are nearest to the table: shares by compute capability, `unhidden`, `kernel`."""
    table = measured_products()
    names = sorted({_capability(one.gpu) for one in table})
    shares = [names.index(_capability(one.gpu)) for one in table]
    compute = np.array([one.flops / one.gpu.bfloat16 for one in table if one.gpu.bfloat16])
    memory = np.array([one.bytes / one.gpu.bandwidth for one in table])
    taken = np.log([one.flops / one.rate for one in table])

    def loss(logs: np.ndarray) -> float:
        *_shares, unhidden, kernel = np.exp(logs)
        seconds = compute / np.exp(logs[shares]) + unhidden * memory + kernel
        return float(np.abs(np.log(seconds) - taken).sum())

    start = np.log([*[0.7] * len(names), 0.5, 3e-6])
    keys = [*(("products", name) for name in names), ("seconds", "unhidden"), ("seconds", "kernel")]
    found = np.exp(_descend(loss, start, list(range(len(start)))))
    return dict(zip(keys, found.tolist(), strict=True))


def fit(rows: list[dict[str, Any]], work: dict[str, Work]) -> tuple[Values, Values]:
    """Return the fitted values, and the assumed ones."""
    start: Values = {}
    law = product_law()
    for row in rows:
        gpu = find_gpu(row["card"])
        for kind, _phase, rate, flops, _size, scores, _keys, _runs in work[row["id"]]:
            if flops and not scores and kind not in WITHOUT_TENSOR_CORES:
                start.setdefault(("compute", _of_rate(gpu, rate)), PRIORS["compute"].value)
                share = "products", _capability(gpu)
                if _is_measured(gpu, rate, kind, law):
                    start[share] = law[share]
    for kind in (*KINDS, "pointwise", *CONVOLUTION_KINDS):
        start["kinds", kind] = PRIORS.get(f"kinds {kind}", PRIORS["kinds"]).value
    for phase in Phase:
        start["launch", phase.name.lower()] = PRIORS[f"launch {phase.name.lower()}"].value
    for name in ("bandwidth", "serial", "library", "host"):
        start["seconds", name] = PRIORS[f"seconds {name}"].value
    start |= {name: law[name] for name in (("seconds", "kernel"), ("seconds", "unhidden"))}
    groups = ["compute", "products", "kinds", "seconds", "launch"]
    names = sorted(start, key=lambda name: (groups.index(name[0]), name))
    priors = [_prior(name, start[name]) for name in names]
    sources = Counter(row["source"]["title"] for row in rows)
    model = _Rows(rows, work, names)
    published = np.log([row["time"] for row in rows])
    weights = np.array([1 / sqrt(sources[row["source"]["title"]]) for row in rows])
    weights /= weights.mean() * SPREAD**2
    assumed = np.log([prior.value for prior in priors])
    spreads = np.array([prior.spread or np.inf for prior in priors])

    def loss(logs: np.ndarray) -> float:
        error = np.abs(np.log(model.seconds(np.exp(logs))) - published)
        huber = np.where(error < KNEE, error * error / 2, KNEE * (error - KNEE / 2))
        return float(weights @ huber + np.sum(((logs - assumed) / spreads) ** 2) / 2)

    free = [place for place, prior in enumerate(priors) if prior.spread]
    found = _descend(loss, np.log([start[name] for name in names]), free)
    return {name: exp(value) for name, value in zip(names, found, strict=True)}, {
        name: start[name] for name in names
    }


def _descend(loss: Any, logs: np.ndarray, free: list[int]) -> np.ndarray:
    """Return a local minimum, by steps along one axis at a time."""
    steps, least = dict.fromkeys(free, 0.2), loss(logs)
    while max(steps.values()) > 1e-3:
        for place in free:
            for step in (steps[place], -steps[place]):
                changed = logs.copy()
                changed[place] += step
                found = loss(changed)
                if found < least:
                    logs, least = changed, found
                    steps[place] *= 1.3
                    break
            else:
                steps[place] /= 2
    return logs


def _of_rate(gpu: Gpu, rate: str) -> str:
    """Return the name of a share of a rate: `8.0 float16`."""
    return f"{_capability(gpu)} {rate if getattr(gpu, rate) else 'float32'}"


def _capability(gpu: Gpu) -> str:
    major, minor = gpu.capability
    return f"{major}.{minor}"


def _is_measured(gpu: Gpu, rate: str, kind: str, names: Container[tuple[str, str]]) -> bool:
    """Return whether a product's share is one of `products`. names: of the values that there are."""
    halves = rate in HALVES and getattr(gpu, rate)
    return bool(kind in PRODUCTS and halves and ("products", _capability(gpu)) in names)


def _prior(name: tuple[str, str], value: float) -> Prior:
    """Return the prior of a value that a fit starts from."""
    joined, (group, _) = " ".join(name), name
    if (spread := SPREADS.get(joined, SPREADS.get(group))) is not None:
        return Prior(value, spread)
    return PRIORS.get(joined, PRIORS.get(group, PRIORS["compute"]))


class _Rows:
    """Iterations of rows as arrays, for many evaluations: `iteration_seconds` of each row."""

    def __init__(
        self, rows: list[dict[str, Any]], work: dict[str, Work], names: list[tuple[str, str]]
    ) -> None:
        at = {name: place for place, name in enumerate(names)}
        self.bandwidth, self.kernel = at["seconds", "bandwidth"], at["seconds", "kernel"]
        self.serial, self.library = at["seconds", "serial"], at["seconds", "library"]
        self.host = at["seconds", "host"]
        self.packing, self.unhidden = at["kinds", GROUPED], at["seconds", "unhidden"]
        each = [_columns(row, work[row["id"]], at) for row in rows]
        sizes = [len(columns) for columns, _update in each]
        self.starts = np.cumsum([0, *sizes[:-1]])
        self.update = np.array([update for _columns, update in each])
        self.slow_host = np.array([find_preset(row["card"]).gpu.capability < ADA for row in rows])
        share, kind, launch, compute, memory, packed, exposed, fixed, runs, launches = np.array(
            [column for columns, _update in each for column in columns]
        ).T
        self.share, self.kind, self.launch = share.astype(int), kind.astype(int), launch.astype(int)
        self.compute, self.memory, self.packed, self.exposed = compute, memory, packed, exposed
        self.fixed, self.runs, self.launches = fixed, runs, runs * launches
        self.libraries = np.array(
            [
                sum(
                    runs
                    for kind, phase, *_rest, runs in work[row["id"]]
                    if kind != "pointwise" and phase != "UPDATE"
                )
                for row in rows
            ]
        )

    def seconds(self, values: np.ndarray) -> np.ndarray:
        compute, memory = self.compute / values[self.share], self.memory / values[self.bandwidth]
        compute += values[self.unhidden] * self.exposed
        # A measured product hides all but `unhidden`.
        shorter = np.where(self.exposed, 0.0, values[self.serial] * np.minimum(compute, memory))
        limit = np.maximum(compute, memory) + shorter + self.fixed
        packing = self.packed / (values[self.bandwidth] * values[self.packing])
        device = limit / values[self.kind] + packing + values[self.kernel]
        thread = self._by_row(self.launches * values[self.launch]) + self.libraries * values[self.library]
        host = np.where(self.slow_host, values[self.host], 1.0)
        return np.maximum(self.update + self._by_row(self.runs * device), host * thread)

    def _by_row(self, seconds: np.ndarray) -> np.ndarray:
        return np.add.reduceat(seconds, self.starts)


def _columns(
    row: dict[str, Any], work: Work, at: dict[tuple[str, str], int]
) -> tuple[list[tuple[float, ...]], float]:
    """Return, for each operation of a row's iteration, the places of its values and its amounts; and the
    seconds of the updates that no value changes.

    at: the place of each value.
    """
    preset = find_preset(row["card"])
    gpu, kernel, one = preset.gpu, efficiencies().kernel, at["kinds", "product"]  # of product: 1
    columns: list[tuple[float, ...]] = []
    update = 0.0
    for kind, phase, rate, flops, size, scores, keys, runs in work:
        count = runs / row["accumulation"] if phase == "UPDATE" else runs
        launch = at["launch", phase.lower()]
        if kind.endswith("update"):
            like, _kind, launches = update_launches(row)
            launch = at["launch", like.name.lower()]
            fused = kind == "fused update"
            update += count * (update_seconds(size, gpu, preset.machine.updates, fused=fused) - kernel)
            columns.append((one, one, launch, 0, 0, 0, 0, 0, count, launches))
            continue
        operation = Operation(flops, size, rate, kind, scores, keys)
        kind, rate = kind_and_rate(operation, gpu)
        peak = getattr(gpu, rate) if flops else gpu.float32
        share, fixed, compute, exposed = one, 0.0, flops / peak, 0.0
        if scores:
            fixed, compute, size = attention_seconds(operation, gpu, peak), 0.0, 0
        elif flops and _is_measured(gpu, rate, kind, at):
            share, exposed = at["products", _capability(gpu)], size / gpu.bandwidth
        elif flops and kind not in WITHOUT_TENSOR_CORES:
            share = at["compute", _of_rate(gpu, rate)]
        memory, packed = size / gpu.bandwidth, 0.0
        if kind == GROUPED:
            kind, memory, packed = "product", 0.0, memory
        columns.append((share, at["kinds", kind], launch, compute, memory, packed, exposed, fixed, count, 1))
    return columns, update


if __name__ == "__main__":
    main()
