"""QLoRA in a plan compared with eager PyTorch with gradient checkpointing: bits, peaks, times.

Protocol. A Llama of 8 layers and width 512, its linear layers in NF4 with nested statistics (bitsandbytes),
peft's LoRA of rank 8 over all of them, AdamW, 4 sequences of 512 tokens, on the CPU with one thread. Eager
PyTorch with gradient checkpointing (`gradient_checkpointing_enable`, not reentrant) runs first, and its peak
is measured. A plan is then made for each share of that peak. Losses and weights after all rounds are compared
bit by bit with those of eager PyTorch. Both take turns in one process; figures are the median and the
quartiles of the rounds' ratios of processor times. Peaks are those of live storage in one iteration with its
update; weights, scales, states and the batch are included.

    python benchmarks/quantised.py [--shares 100,60] [--rounds 9] [--seconds 60] [--layers 8] [--width 512]
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable
from statistics import quantiles
from time import process_time
from typing import Any

import bitsandbytes
import memplan
import peft
import torch
from memplan.devices.measuring.live_bytes import blocks_of, live_peak
from memplan.model.attached import named_buffers
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

Loop = Callable[[], float]


def quantised(module: nn.Module) -> nn.Module:
    """Replace the linear layers, but for the last, by frozen ones in 4 bits."""
    layers: Any = bitsandbytes.nn
    for name, part in list(module.named_children()):
        if isinstance(part, nn.Linear) and name != "lm_head":
            made: Any = layers.Linear4bit(
                part.in_features,
                part.out_features,
                bias=False,
                compute_dtype=torch.float32,
                quant_type="nf4",
            )
            made.weight = layers.Params4bit(part.weight.data, quant_type="nf4", module=made)
            setattr(module, name, made.to("cpu"))
        else:
            quantised(part)
    return module


def model(layers: int, width: int) -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=width,
        intermediate_size=width * 43 // 16,
        num_hidden_layers=layers,
        num_attention_heads=8,
        vocab_size=2048,
        use_cache=False,
    )
    base = quantised(LlamaForCausalLM(config)).requires_grad_(False)
    return peft.get_peft_model(base, peft.LoraConfig(r=8, target_modules="all-linear")).train()


def optimizer_of(module: nn.Module) -> torch.optim.AdamW:
    return torch.optim.AdamW([p for p in module.parameters() if p.requires_grad], lr=1e-3)


def peak(module: nn.Module, optimizer: torch.optim.Optimizer, batch: Any, run: Loop) -> int:
    """Return the bytes alive at most while one iteration runs."""
    states = (x for row in optimizer.state.values() for x in row.values() if isinstance(x, torch.Tensor))
    there = (*module.parameters(), *named_buffers(module).values(), *states, *batch.values())
    return sum(blocks_of(there).values()) + live_peak(run).peak_bytes


def compare(options: argparse.Namespace) -> None:
    planned = model(options.layers, options.width)
    tokens = torch.randint(0, 2048, (4, options.tokens))
    batch = {"input_ids": tokens, "labels": tokens}
    start = copy.deepcopy(planned.state_dict())
    eager: Any = copy.deepcopy(planned)
    eager.enable_input_require_grads()
    eager.gradient_checkpointing_enable({"use_reentrant": False})
    optimizer = optimizer_of(eager)

    def loop() -> float:
        loss = eager(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    loop()
    most = peak(eager, optimizer, batch, loop)
    print(f"| eager with checkpointing | 1 | {most / 2**20:.1f} MiB, 100% | |", flush=True)
    for share in options.shares.split(","):
        for module in (eager, planned):
            module.load_state_dict(start, strict=False)
        optimizer.state.clear()
        own = optimizer_of(planned)
        budget = most * int(share) // 100
        step = memplan.optimize(
            planned, batch, optimizer=own, budget=budget, time_limit=options.seconds, cache=False
        )
        row(f"plan at {share}%", most, options.rounds, loop, Planned(step, batch, planned, own), eager)


class Planned:
    """A planned loop: a call is an iteration, with its update."""

    def __init__(self, step: memplan.Step, batch: Any, module: nn.Module, optimizer: Any) -> None:
        self.step, self.batch, self.module, self.optimizer = step, batch, module, optimizer

    def __call__(self) -> float:
        return self.step(self.batch).item()

    def peak(self) -> int:
        return peak(self.module, self.optimizer, self.batch, self)


def row(what: str, most: int, rounds: int, loop: Loop, planned: Planned, eager: nn.Module) -> None:
    losses: list[float] = []
    ratios: list[float] = []
    for number in range(rounds + 1):
        times = [timed(lambda run=run: losses.append(run())) for run in (loop, planned)]
        if number:  # in the first one the step is compared with eager PyTorch
            ratios.append(times[1] / times[0])
    planned.step.restore_to_device()
    both = zip(planned.module.parameters(), eager.parameters(), strict=True)
    same = losses[::2] == losses[1::2] and all(torch.equal(a, b) for a, b in both if a.requires_grad)
    taken = planned.peak()
    low, middle, high = quantiles(ratios, n=4)
    print(
        f"| {what} | {middle:.3f} ({low:.3f} to {high:.3f}) | {taken / 2**20:.1f} MiB, "
        f"{taken / most:.1%} | {'the same' if same else 'OTHERS'} |",
        flush=True,
    )


def timed(run: Callable[[], Any]) -> float:
    start = process_time()
    run()
    return process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--shares", default="100,60")
    for name, value in {"rounds": 9, "seconds": 60, "layers": 8, "width": 512, "tokens": 512}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    torch.set_num_threads(1)
    compare(parser.parse_args())


if __name__ == "__main__":
    main()
