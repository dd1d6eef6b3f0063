"""LoHan (Liao et al., 2024): states on disks, updates on the CPU, activations swapped as far as it pays.

Models of table IV, sequences of 1024, mixed precision, the machine of table III.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from figure import Case, Figure, Missing, Plot, Values
from memplan.graphs.machine import Link, Machine
from memplan.graphs.machines.presets import LOHAN_DISKS, find_preset
from memplan.instances.models import MODELS, Transformer
from memplan.instances.transformer import Rates, Training, model_flops, transformer
from memplan.solvers.problem import InfeasibleError, NotAcceptedError, Problem, ValidatedSolution
from memplan.solvers.registry import run as registry

TITLE = "LoHan"
MACHINE = find_preset("rtx4090-12nvme").machine
FLOPS = {"rtx4090": 146e12, "rtx3090": 71e12, "rtx4080": 97e12}
"""Attained at best: 4090, published, figure 5c; the others scaled by their data sheets."""
MEMORY = {"rtx4090": 24, "rtx3090": 24, "rtx4080": 16}
SIZES = ("6b", "13b", "30b", "70b", "135b", "175b", "276b", "412b")
SYSTEMS: dict[str, tuple[str, dict[str, str]]] = {
    "LoHan": ("lohan", {"states": "disk", "keep": "0", "amounts": "3"}),
    "ZeRO-Infinity": ("zero-infinity", {"states": "disk", "activations": "offload"}),
    "ZeRO-Offload": ("zero-infinity", {"states": "host", "activations": "offload"}),
    "LoHan+CpuAct": ("lohan", {"states": "disk", "keep": "0", "activations": "host", "swap": "0"}),
}
"""Both ZeROs swap a block's input and run the block again: here all that is kept goes to the host. The
paper's ZeRO-Offload has all model states in host memory, weights too: ZeRO-Infinity without a disk."""
COMPARED = ("LoHan", "ZeRO-Infinity", "ZeRO-Offload")


def machine_of(given: Values) -> Machine:
    """gpu, host (GB) and ssds, or the paper's own."""
    gpu, ssds = str(given.get("gpu", "rtx4090")), float(given.get("ssds", 12))
    # A disk has its vendor's rates; what 12 of them reach, read or written, was measured.
    read, write = (Link(min(LOHAN_DISKS, rate * ssds)) for rate in (6.5e9, 3.4e9))
    links = replace(MACHINE.links, disk_read=read, disk_write=write)
    host, device = int(given.get("host", 768)) * 10**9, MEMORY[gpu] * 2**30
    return replace(MACHINE, device_capacity=device, host_capacity=host, links=links)


def solved(
    system: str,
    given: Values,
    seconds: float,
    more: Mapping[str, str] | None = None,
    *,
    staged: bool = False,
) -> ValidatedSolution:
    """Return the solution of a system.

    given: model, batch, and what machine_of takes. staged: by whole blocks, with buffers of the next one.
    """
    machine, (solver, settings) = machine_of(given), SYSTEMS[system]
    rates = Rates(FLOPS[str(given.get("gpu", "rtx4090"))], 46e9, 8e9)
    model, training = model_of(given), training_of(given)
    training = replace(training, granularity="layer") if staged else training
    graph = transformer(model, training, rates, machine)
    room = (machine.device_capacity or 0) - (staging_bytes(model) if staged else 0)
    problem = Problem(graph, max(1, room), machine)
    return registry.solve(solver, problem, seconds, {**settings, **(more or {})}, bound_seconds=0.0)


def model_of(given: Values) -> Transformer:
    """Of table IV; layers: as many of them."""
    model = MODELS[f"lohan-{given['model']}"]
    return replace(model, layers=int(given.get("layers", model.layers)))


def staging_bytes(model: Transformer) -> int:
    """Return the device's bytes for the weights of the block that comes and the gradients of the one that
    leaves, both in 16 bits, while a third block computes."""
    return 2 * 2 * 12 * model.hidden**2


def training_of(given: Values) -> Training:
    return Training(int(given["batch"]), 1024, granularity="sublayer")


def attained(given: Values, found: ValidatedSolution) -> Values:
    flops = model_flops(model_of(given), training_of(given))
    return {
        "iteration, s": round(found.figures.time, 2),
        "TFLOP/s": round(flops / found.figures.time / 1e12, 1),
        "host, GB": round(found.figures.host_peak / 1e9),
        "disk, GB": round(found.figures.disk_peak / 1e9),
    }


def one(given: Values, seconds: float) -> Values:
    """One system; where it says so, updates or swap as given."""
    more = {key: str(given[key]) for key in ("updates", "swap") if given.get(key, "") != ""}
    return attained(given, solved(str(given.get("system", "LoHan")), given, seconds, more))


def against(given: Values, seconds: float) -> Values:
    """LoHan's throughput beside both ZeROs', each at the largest batch of `batches` that fits it."""
    values: dict[str, str | int | float] = {}
    for system in COMPARED:
        rates = [rate for rate in _each_batch(system, given, seconds) if rate]
        values[f"{system}, TFLOP/s"] = max(rates, default="does not fit")
    best = float(values["LoHan, TFLOP/s"]) if values["LoHan, TFLOP/s"] != "does not fit" else 0.0
    for system in ("ZeRO-Offload", "ZeRO-Infinity"):
        rate = values[f"{system}, TFLOP/s"]
        values[f"LoHan over {system}"] = round(best / rate, 2) if isinstance(rate, float) else ""
    return values | {"of the GPU's best, %": round(100e12 * best / FLOPS[str(given["gpu"])])}


def _each_batch(system: str, given: Values, seconds: float) -> list[float]:
    rates: list[float] = []
    for batch in str(given["batches"]).split():
        case = {**given, "batch": int(batch)}
        try:
            rates.append(float(attained(case, solved(system, case, seconds))["TFLOP/s"]))
        except (InfeasibleError, NotAcceptedError):
            rates.append(0.0)
    return rates


def largest(given: Values, seconds: float) -> Values:
    """Of table IV's models, from `most` down."""
    for size in SIZES[SIZES.index(str(given["most"])) :: -1]:
        case = {**given, "model": size}
        more = {"amounts": "1"} if given["system"] == "LoHan" else {}
        try:
            solved(str(given["system"]), case, seconds, more, staged=True)
        except (InfeasibleError, NotAcceptedError):
            continue
        return {"largest": size.upper()}
    return {"largest": "none"}


ASSUMED = (
    "The GPU's rate at best is taken from figure 5c for the RTX 4090 and scaled by data sheets for the "
    "others; "
    "CPU Adam at 8 GB/s is assumed. memplan's figures are simulated, with all transfers overlapped; "
    "the 12 disks read or write, 28 GB/s in all, as the paper measured. "
)
BASELINES = (
    "The measured ZeROs run one thing after the other, so LoHan gains more over them in the paper. As the "
    "paper has it, ZeRO-Offload keeps all model states in host memory: here it is ZeRO-Infinity without a "
    "disk. From 70B on it needs more than the 768 GB of host memory. "
)
FIGURES = (
    Figure(
        "lohan-5a-5b",
        "13B on an RTX 4090 and 3090: the best throughput",
        "Figures 5a and 5b, section V-C",
        "plot only. Text, at the best: LoHan over ZeRO-Offload 2.32, ZeRO-Infinity 3.46 and Colossal-AI 8.02 "
        "times on the 4090; 1.57, 2.48 and 4.72 on the 3090.",
        ASSUMED + BASELINES + "Colossal-AI has no solver here.",
        [
            Case(
                {"model": "13b", "gpu": gpu, "batches": "8 16 32 64"},
                {"LoHan over ZeRO-Offload": offload, "LoHan over ZeRO-Infinity": infinity},
            )
            for gpu, offload, infinity in (("rtx4090", 2.32, 3.46), ("rtx3090", 1.57, 2.48))
        ],
        against,
        {"model": "6b", "layers": 2, "gpu": "rtx4090", "batches": "1"},
        plot=Plot("gpu", [f"{system}, TFLOP/s" for system in COMPARED], axis="TFLOP/s"),
    ),
    Figure(
        "lohan-5c",
        "throughput over the model's size on an RTX 4090",
        "Figure 5c, section V-C",
        "plot only. Text: LoHan reaches 90 to 95 % of the best rate below 70B, 53 % at 175B; the baselines "
        "at most 40 %.",
        ASSUMED
        + BASELINES
        + "The batch of 175B is not published; it is 8 or 16 here. By the vendor's rates, both ways at "
        "once, memplan's figure was 99 %. Below 30B it is 7 to 16 points lower than published, unexplained.",
        [
            Case({"model": size, "gpu": "rtx4090", "batches": batches}, {"of the GPU's best, %": share})
            for size, batches, share in (
                ("6b", "32 64", "90 to 95"),
                ("13b", "32 64", "90 to 95"),
                ("30b", "32 48", "90 to 95"),
                ("70b", "16 32", ""),
                ("135b", "8 16", ""),
                ("175b", "8 16", 53),
            )
        ],
        against,
        {"model": "6b", "layers": 2, "gpu": "rtx4090", "batches": "1"},
        plot=Plot("model", [f"{system}, TFLOP/s" for system in COMPARED], axis="TFLOP/s"),
    ),
    Figure(
        "lohan-6",
        "the largest model over the host's memory, batch 1",
        "Figure 6, section V-B",
        "plot only. Text: LoHan 276B with 768 GB on the RTX 4090, 2.04 times ZeRO-Infinity's (135B); 175B "
        "with 256 GB on the RTX 4080.",
        "Sizes are those of table IV. Blocks are whole here, and buffers on the device count for the weights "
        "of the next and the gradients of the last one: four times a block's weights in 16 bits, 19.7 GB at "
        "276B and 25.8 GB at 412B. So LoHan's largest are the published ones on both cards, 276B on 24 GiB "
        "and 175B on 16 GiB, whatever the host (412B fits without those buffers). ZeRO-Infinity's is one "
        "size larger than published with 768 GB, unexplained: the paper estimates 1.1 TB of host memory for "
        "its 175B.",
        [
            Case(
                {"system": system, "gpu": gpu, "host": host, "batch": 1, "most": "412b"},
                {"largest": published.get((system, gpu, host), "")},
            )
            for published in (
                {
                    ("LoHan", "rtx4090", 768): "276B",
                    ("ZeRO-Infinity", "rtx4090", 768): "135B",
                    ("LoHan", "rtx4080", 256): "at least 175B",
                },
            )
            for gpu in ("rtx4090", "rtx4080")
            for host in (128, 256, 512, 768)
            for system in ("LoHan", "ZeRO-Infinity")
        ],
        largest,
        {"system": "ZeRO-Infinity", "gpu": "rtx4090", "host": 768, "batch": 1, "most": "6b", "layers": 2},
        plot=Plot("host", ["largest"], by=["gpu", "system"], axis="largest, billions of parameters"),
    ),
    Figure(
        "lohan-7",
        "updates beside backward or behind it",
        "Figure 7, section V-D",
        "13B, batch 64: optimized 1.33 times LoHan+ZeRO (updates behind backward), 1.22 times the naive one.",
        ASSUMED
        + "At batch 64 active updates are 1.37 times as fast as late ones, published 1.33 (by the vendor's "
        "rates for disks nothing was lost). The naive variant needs an update "
        "that waits for the "
        "disk's "
        "writes of the one before, which no schedule can ask for.",
        [
            Case({"model": model, "batch": batch, "updates": updates})
            for model, batches in (("13b", (8, 32, 64)), ("175b", (8, 16)))
            for batch in batches
            for updates in ("active", "late")
        ],
        one,
        {"model": "6b", "layers": 2, "batch": 1, "updates": "late"},
        plot=Plot("batch", ["TFLOP/s"], by=["model", "updates"]),
    ),
    Figure(
        "lohan-8",
        "the largest model where activations may go to the disk, and where not",
        "Figure 8, section V-E",
        "plot only. Text: with 128 GB LoHan trains models 2 to 5 times as large as LoHan+CpuAct, which swaps "
        "to the host alone; with 256 GB and batch 60 both are alike.",
        "Of 2026-11-25, by operations of half a block and without buffers of whole blocks (see lohan-6). "
        "Sizes are those of table IV; 412B, the largest, stands for that or more. LoHan+CpuAct swaps what "
        "blocks read, the least that there is, and runs the blocks again. With 128 GB LoHan's are 2.5 and "
        "2.3 times as large at batch 36 and 60, as published, and at least 1.5 times at batch 12. With "
        "256 GB both are alike at every batch here. Of the batches only 60 is published.",
        [
            Case({"host": host, "batch": batch, "system": system, "most": "412b"})
            for host in (128, 256)
            for batch in (12, 36, 60)
            for system in ("LoHan", "LoHan+CpuAct")
        ],
        largest,
        {"host": 128, "batch": 1, "system": "LoHan+CpuAct", "most": "6b", "layers": 2},
        plot=Plot("batch", ["largest"], by=["host", "system"], axis="largest, billions of parameters"),
    ),
    Figure(
        "lohan-9a",
        "what is swapped: 70B under less host memory",
        "Figure 9a and table V, section V-E",
        "plot only; batches of table V. Text: LoHan keeps its throughput with little host memory, the others "
        "but G10 lose theirs.",
        ASSUMED + "DS, a block's input swapped and the block run again, is swap=0; G10, which recomputes "
        "nothing, is swap=1. Capuchin's and Checkmate's choices inside LoHan have no setting here. With 128 "
        "GB LoHan has 51 % more than DS and 11 % more than G10, with 512 GB 5 and 8 %: it keeps 91 % of its "
        "throughput with little host memory, DS 63 %.",
        [
            Case({"strategy": name, "model": "70b", "host": host, "batch": batch, "swap": swap})
            for host, least in ((128, 16), (256, 24), (512, 32))
            for name, batch, swap in (("optimized", 32, ""), ("DS", least, "0"), ("G10", 32, "1"))
        ],
        one,
        {"strategy": "DS", "model": "6b", "layers": 2, "host": 256, "batch": 1, "swap": "0"},
        plot=Plot("host", ["TFLOP/s"], by=["strategy"]),
    ),
    Figure(
        "lohan-9b",
        "iteration time over the share of activations swapped, 13B",
        "Figure 9b, section V-E",
        "plot only. Text: the predicted amount is near the best; at batch 24 time grows with the amount, at"
        " 36, "
        "48 and 60 it falls, then grows.",
        ASSUMED
        + "Shares are of all bytes that can be swapped. An empty share is LoHan's own choice, at most 1 %"
        " above the best in its row. At batch 24 time grows with the amount, at the others it falls, then "
        "grows, as published.",
        [
            Case({"model": "13b", "batch": batch, "swap": swap})
            for batch in (24, 36, 48, 60)
            for swap in ("", 0.0, 0.25, 0.5, 0.75, 1.0)
        ],
        one,
        {"model": "6b", "layers": 2, "batch": 1, "swap": 0.5},
        plot=Plot("swap", ["iteration, s"], by=["batch"]),
    ),
    Figure(
        "lohan-10a",
        "throughput over the number of disks, 135B",
        "Figure 10a, section V-F",
        "plot only. Text: LoHan's grows nearly linearly from 1 to 3 disks and little from 6 to 12; "
        "ZeRO-Infinity's grows slowly.",
        ASSUMED
        + "Batch 16 for both; the paper takes the largest that fits, unnamed. A disk has its vendor's rates, "
        "one direction at a time, and all together no more than 28 GB/s: from 1 to 3 disks LoHan gains "
        "2.8 times, ZeRO-Infinity 2.3 times; from 6 to 12 1.13 and 1.08 times, as little as published.",
        [
            Case({"model": "135b", "batch": 16, "system": system, "ssds": ssds})
            for system in ("LoHan", "ZeRO-Infinity")
            for ssds in (1, 2, 3, 6, 12)
        ],
        one,
        {"model": "6b", "layers": 2, "batch": 1, "system": "LoHan", "ssds": 2},
        plot=Plot("ssds", ["TFLOP/s"], by=["system"]),
    ),
    Figure(
        "lohan-10b",
        "throughput over the number of disks, 13B",
        "Figure 10b, section V-F",
        "135 TFLOP/s take 12 disks at batch 32, 6 at 48, 3 at 64.",
        ASSUMED
        + "A disk has its vendor's sequential rates, one direction at a time. 12 disks are needed at batch "
        "32 here too, at 48 6 are within 1 % of the best, at 64 3 reach 93 % of it, where the paper has its "
        "best. memplan's ends at 122 TFLOP/s, 10 % below the published 135.",
        [
            Case({"model": "13b", "batch": batch, "ssds": ssds})
            for batch in (32, 48, 64)
            for ssds in (1, 2, 3, 6, 12)
        ],
        one,
        {"model": "6b", "layers": 2, "batch": 1, "ssds": 2},
        plot=Plot("ssds", ["TFLOP/s"], by=["batch"]),
    ),
)
MISSING = (
    Missing("Figure 7, naive", "an update that waits for the disk's writes of the one before it", True),
    Missing("Figure 9a, Capuchin and Checkmate", "their choices inside LoHan", True),
    Missing("Figures 5a and 5b, Colossal-AI", "it has no solver here", True),
    Missing("Figures 11 to 13", "several GPUs, diffusion models on a GPU, and prices"),
)
