"""Pieces that memplan plans alongside fused losses that are chosen by hand: peak and time of an iteration.

    eager       the model's own loss
    TRL         the tiles that its SFTTrainer computes log-probabilities by (`loss_type="chunked_nll"`)
    PyTorch     `linear_cross_entropy`, in chunks
    Liger       the scheme of `fused_linear_cross_entropy`, its kernel written in PyTorch
    plan        `split=True`, at shares of eager PyTorch's peak

Protocol as in split.py: all take turns in one process; times are medians of ratios of processor times, and of
times by the clock, to eager PyTorch's in the same round. The first line of each is its largest difference
from eager PyTorch's gradients, over their largest.

    python benchmarks/split_peers.py [gpt2 llama-lora] [--shares 40%,30%] [--rounds 3] [--seconds 10]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from math import ceil
from statistics import median
from time import perf_counter, process_time
from typing import Any

import memplan
import torch
from memplan.devices.measuring.live_bytes import live_peak
from split import Case, language_model, planned
from torch import Tensor, nn
from torch.nn import functional

IGNORED = -100

Loss = Callable[[Tensor, nn.Parameter, Tensor], Tensor]
"""A function of hidden states `[tokens, width]`, the head's weight and targets."""


class LigerScheme(torch.autograd.Function):
    """Loss and gradients at once, chunk by chunk: logits of a chunk are replaced by their gradient."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
        tokens, width = hidden.shape
        rows = 1 << (ceil(tokens / ceil(weight.shape[0] / width)) - 1).bit_length()
        count = (targets != IGNORED).sum()
        total = hidden.new_zeros(())
        of_hidden = torch.empty_like(hidden)
        of_weight = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        for first in range(0, tokens, rows):
            part, wanted = hidden[first : first + rows], targets[first : first + rows]
            logits = part @ weight.T
            counts = wanted != IGNORED
            picked = torch.where(counts, wanted, 0)[:, None]
            logits -= logits.logsumexp(-1, keepdim=True)
            total -= (logits.gather(1, picked)[:, 0] * counts).sum()
            logits.exp_().scatter_add_(1, picked, logits.new_full((1, 1), -1.0).expand_as(picked))
            logits *= (counts / count)[:, None]
            torch.mm(logits, weight, out=of_hidden[first : first + rows])
            if of_weight is not None:
                of_weight.addmm_(logits.T, part)
        ctx.save_for_backward(of_hidden, of_weight)
        return total / count

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor | None, None]:
        of_hidden, of_weight = ctx.saved_tensors
        (gradient,) = gradients
        return of_hidden.mul_(gradient), None if of_weight is None else of_weight.mul_(gradient), None


def by_liger(hidden: Tensor, weight: nn.Parameter, targets: Tensor) -> Tensor:
    found: Any = LigerScheme.apply(hidden, weight, targets)
    return found


def by_pytorch(hidden: Tensor, weight: nn.Parameter, targets: Tensor) -> Tensor:
    operator: Any = functional.linear_cross_entropy
    options: Any = nn.LinearCrossEntropyOptions()
    return operator(hidden, weight, targets, ignore_index=IGNORED, options=options)


def by_trl(hidden: Tensor, weight: nn.Parameter, targets: Tensor) -> Tensor:
    from trl.kernels.chunked_logprob import ChunkedLogProbFunction  # pyright: ignore[reportMissingImports]
    from trl.trainer import utils  # pyright: ignore[reportMissingImports]

    tiles: Any = ChunkedLogProbFunction.apply
    size: int = utils._CHUNKED_LOGPROB_CHUNK_SIZE  # pyright: ignore[reportAttributeAccessIssue]
    counts = targets != IGNORED
    found = tiles(hidden, weight, None, targets.clamp(min=0), 1.0, size, None, 1.0, ())
    return -(found[0] * counts).sum() / counts.sum()


PEERS: dict[str, Loss] = {"TRL": by_trl, "PyTorch": by_pytorch, "Liger": by_liger}


def fused(case: Case, loss: Loss) -> Callable[[], Tensor]:
    """Return the model's loss by a function of hidden states."""
    module: Any = case.module
    model = module.get_base_model() if hasattr(module, "get_base_model") else module
    words: Tensor = case.inputs["input_ids"]
    targets = functional.pad(words, (0, 1), value=IGNORED)[:, 1:].flatten()

    def run() -> Tensor:
        hidden = model.base_model(input_ids=words).last_hidden_state
        return loss(hidden.flatten(0, 1), model.lm_head.weight, targets)

    return run


def compare(case: Case, shares: list[str], rounds: int, seconds: float) -> None:
    module = case.module
    size = sum(p.nbytes for p in module.parameters())

    def iteration(loss: Callable[[], Tensor]) -> Callable[[], None]:
        def run() -> None:
            loss().backward()
            module.zero_grad(set_to_none=True)

        return run

    losses = {"eager": case.eager, **{name: fused(case, loss) for name, loss in PEERS.items()}}
    for share in shares:
        step = planned(case, share, seconds, split=True)
        losses[f"plan at {share}"] = lambda step=step: step(case.inputs, **case.given)
    wanted = gradients(module, losses["eager"])
    for loss in losses.values():
        for _ in range(2):  # the first iterations of a plan run eager PyTorch as well
            found = gradients(module, loss)
        most = max(float(one.abs().max()) for one in wanted)
        print("  ", max(float((a - b).abs().max()) for a, b in zip(wanted, found, strict=True)) / most)
    runs = {name: iteration(loss) for name, loss in losses.items()}
    peaks = {name: live_peak(run).peak_bytes + size for name, run in runs.items()}
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            begun = process_time(), perf_counter()
            run()
            times[name].append((process_time() - begun[0], perf_counter() - begun[1]))
    for name, rows in times.items():
        ratios = zip(rows, times["eager"], strict=True)
        pairs = [(mine[0] / its[0], mine[1] / its[1]) for mine, its in ratios]
        cpu, clock = (median(pair[place] for pair in pairs) for place in (0, 1))
        share = peaks[name] / peaks["eager"]
        line = f"{name}: {peaks[name]:,} B, {share:.1%}, {cpu:.3f} of the time, by the clock {clock:.2f}"
        print(line, flush=True)


def gradients(module: nn.Module, loss: Callable[[], Tensor]) -> list[Tensor]:
    loss().backward()
    found = [p.grad.clone() for p in module.parameters() if p.grad is not None]
    module.zero_grad(set_to_none=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", default=["gpt2", "llama-lora"])
    parser.add_argument("--shares", default="40%,30%")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10)
    given = parser.parse_args()
    torch.set_num_threads(1)
    for name in given.cases:
        print(name, memplan.__version__, torch.__version__, flush=True)
        compare(language_model(name), given.shares.split(","), given.rounds, given.seconds)


if __name__ == "__main__":
    main()
