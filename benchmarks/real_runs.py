"""Whole training runs within a budget, beside plain PyTorch's: every loss and the final weights, bit by bit.

Five models on real or made-up data, dropout on, AdamW with a OneCycle learning rate, updates in the plan:

    gpt2     4 layers, on the bytes of the sources of Python's standard library
    resnet   a small one, on scikit-learn's digits
    vit      4 layers, on scikit-learn's digits
    t5       2 + 2 layers: turn a sequence of tokens round
    lora     a Llama of 4 layers, LoRA on its attention: repeat a sequence of tokens

each with a budget of 60 and of 40 % of the plain peak, tensors moved to host memory over the links of an
RTX 3060 where the plan likes. The same seeds, batches and numbers in both. Every planned iteration but the
first, which makes the optimizer's states, is measured by the allocator's own events, in windows of
iterations; the most must be at most what the plan says. The last batch of an epoch is smaller where the data
end so: it has a plan of its own.

    python benchmarks/real_runs.py [--models gpt2,vit] [--iterations 300] [--seconds 20]
"""

from __future__ import annotations

import argparse
import sysconfig
from collections.abc import Callable, Sequence
from hashlib import sha256
from itertools import cycle, groupby, islice
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import memplan
import torch
from memplan.profiling.compare.peaks import peaks_of
from torch import Tensor, nn
from torch.optim.lr_scheduler import OneCycleLR

Batch = dict[str, Tensor]
WINDOW = 10


class Task(NamedTuple):
    build: Callable[[], nn.Module]
    batches: Callable[[], list[Batch]]


# ── models ──────────────────────────────────────────────────────────────────────────────────────────


def gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    ends: dict[str, Any] = {"bos_token_id": 0, "eos_token_id": 0, "use_cache": False}
    return GPT2LMHeadModel(
        GPT2Config(vocab_size=256, n_positions=128, n_embd=192, n_layer=4, n_head=6, **ends)
    )


def resnet() -> nn.Module:
    from transformers import ResNetConfig, ResNetForImageClassification

    sizes: dict[str, Any] = {"embedding_size": 16, "hidden_sizes": [16, 32, 64], "depths": [2, 2, 2]}
    images: dict[str, Any] = {"num_channels": 1, "num_labels": 10}
    return ResNetForImageClassification(ResNetConfig(layer_type="basic", **sizes, **images))


def vit() -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    sizes: dict[str, Any] = {"hidden_size": 96, "intermediate_size": 384}
    layers: dict[str, Any] = {"num_hidden_layers": 4, "num_attention_heads": 4}
    dropout: dict[str, Any] = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
    images: dict[str, Any] = {"image_size": 8, "patch_size": 1, "num_channels": 1, "num_labels": 10}
    return ViTForImageClassification(ViTConfig(**sizes, **layers, **dropout, **images))


def t5() -> nn.Module:
    from transformers import T5Config, T5ForConditionalGeneration

    sizes: dict[str, Any] = {"vocab_size": 128, "d_model": 96, "d_kv": 24, "d_ff": 256}
    layers: dict[str, Any] = {"num_layers": 2, "num_heads": 4, "decoder_start_token_id": 0}
    return T5ForConditionalGeneration(T5Config(**sizes, **layers, use_cache=False))


def lora() -> nn.Module:
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes: dict[str, Any] = {"vocab_size": 128, "hidden_size": 128, "intermediate_size": 352}
    config = LlamaConfig(
        **sizes, num_hidden_layers=4, num_attention_heads=4, max_position_embeddings=64, use_cache=False
    )
    return get_peft_model(LlamaForCausalLM(config), LoraConfig(target_modules=["q_proj", "v_proj"], r=8))


# ── data ────────────────────────────────────────────────────────────────────────────────────────────


def library(length: int = 128, batch: int = 8, most: int = 60) -> list[Batch]:
    """The bytes of the standard library's modules, in the order of their names."""
    folder = Path(sysconfig.get_path("stdlib"))
    text = b"".join(file.read_bytes() for file in sorted(folder.glob("[a-f]*.py")))
    rows = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()[: most * batch * length]
    return [{"input_ids": part, "labels": part} for part in rows.view(-1, length).split(batch)]


def digits(batch: int = 64) -> list[Batch]:
    """1,797 images of 8 × 8: the last batch has 5."""
    from sklearn.datasets import load_digits

    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32)[:, None] / 16
    labels = torch.tensor(data.target)
    parts = zip(images.split(batch), labels.split(batch), strict=True)
    return [{"pixel_values": each, "labels": label} for each, label in parts]


def turned(length: int = 32, batch: int = 16) -> list[Batch]:
    tokens = torch.randint(2, 128, (40 * batch, length), generator=torch.Generator().manual_seed(5))
    return [{"input_ids": part, "labels": part.flip(1)} for part in tokens.split(batch)]


def repeated(length: int = 32, batch: int = 16) -> list[Batch]:
    tokens = torch.randint(2, 128, (40 * batch, length), generator=torch.Generator().manual_seed(6))
    pairs = tokens.repeat(1, 2)
    labels = torch.cat([torch.full_like(tokens, -100), tokens], 1)
    return [
        {"input_ids": each, "labels": label}
        for each, label in zip(pairs.split(batch), labels.split(batch), strict=True)
    ]


TASKS = {
    "gpt2": Task(gpt2, library),
    "resnet": Task(resnet, digits),
    "vit": Task(vit, digits),
    "t5": Task(t5, turned),
    "lora": Task(lora, repeated),
}


# ── runs ────────────────────────────────────────────────────────────────────────────────────────────


class Run:
    """A training run of one task."""

    def __init__(self, task: Task, iterations: int) -> None:
        torch.manual_seed(0)
        self.module = task.build().train()
        self.optimizer = torch.optim.AdamW([p for p in self.module.parameters() if p.requires_grad])
        self.schedule = OneCycleLR(self.optimizer, max_lr=2e-3, total_steps=iterations)
        self.batches = list(islice(cycle(task.batches()), iterations))
        self.losses: list[float] = []

    def train(self, step: Callable[..., Tensor], batches: Sequence[Batch]) -> None:
        for batch in batches:
            self.losses.append(float(step(**batch).detach()))
            self.schedule.step()

    def plain_step(self, **batch: Tensor) -> Tensor:
        loss = self.module(**batch).loss
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss

    def digests(self) -> tuple[str, str]:
        """Of the loss curve, and of weights and buffers."""
        there = (*self.module.parameters(), *self.module.buffers())
        return digest([torch.tensor(self.losses)]), digest([tensor.detach() for tensor in there])


class Planned(NamedTuple):
    """set_up: seconds of the first plan. most: the largest measured peak, as a share of the plan's. over:
    iterations in windows above it."""

    run: Run
    set_up: float
    plans: int
    budget: int
    moved: bool
    most: float
    over: int


def planned(task: Task, iterations: int, budget: str, seconds: float) -> Planned:
    run = Run(task, iterations)
    start = perf_counter()
    options: dict[str, Any] = {"optimizer": run.optimizer, "time_limit": seconds, "cache": False}
    step = memplan.optimize(run.module, run.batches[0], budget=budget, machine="rtx3060", **options)
    set_up = perf_counter() - start
    torch.manual_seed(1)
    run.train(step, run.batches[:1])  # makes the optimizer's states
    most, over = 0.0, 0
    for _shape, group in groupby(run.batches[1:], key=lambda batch: batch["labels"].shape):
        identical = list(group)
        for first in range(0, len(identical), WINDOW):
            part = identical[first : first + WINDOW]
            share = measured(step, run, part)
            most = max(most, share)
            over += len(part) * (share > 1)
    step.restore_to_device()
    there = step.plans[0]
    return Planned(run, set_up, len(step.plans), there.budget or 0, there.cycle is not None, most, over)


def measured(step: memplan.Step, run: Run, batches: Sequence[Batch]) -> float:
    """The peak of these iterations, as a share of that of the plan for their shape; where another takes its
    place meanwhile, of the larger. What only the other moves is counted twice then, as the tracker does not
    see it leave: so it is taken off."""
    plan, _ = step._executor.plans.serving(batches[0])
    planned = step.plan.figures.peak
    peaks = peaks_of(plan, lambda: run.train(step, batches))
    after, _ = step._executor.plans.serving(batches[0])
    twice = sum(plan.program.storages[x].bytes for x in after._moved - plan._moved)
    return (peaks.device - peaks.extra - twice) / max(planned, step.plan.figures.peak)


def digest(tensors: list[Tensor]) -> str:
    return sha256(b"".join(tensor.contiguous().numpy().tobytes() for tensor in tensors)).hexdigest()[:12]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--models", default=",".join(TASKS))
    parser.add_argument("--iterations", type=int, default=300)
    parser.add_argument("--seconds", type=float, default=20, help="for the solver, each plan")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    row = "| {} | {} | {} | {} | {} | {} | {} | {} | {} |"
    print(
        row.format(
            "model", "budget", "plans", "moves", "set-up s", "first, last loss", "losses", "weights", "peak"
        )
    )
    print(row.format(*["---"] * 9))
    for name in options.models.split(","):
        eager = Run(TASKS[name], options.iterations)
        torch.manual_seed(1)
        eager.train(eager.plain_step, eager.batches)
        digests = eager.digests()
        ends = f"{eager.losses[0]:.3f}, {eager.losses[-1]:.3f}"
        print(row.format(name, "plain", "", "", "", ends, *digests, ""), flush=True)
        for budget in ("60%", "40%"):
            try:
                own = planned(TASKS[name], options.iterations, budget, options.seconds)
            except memplan.InfeasibleError as error:
                print(row.format(name, budget, "", "", "", str(error), "", "", ""), flush=True)
                continue
            same = [("equal" if a == b else b) for a, b in zip(digests, own.run.digests(), strict=True)]
            peak = f"{own.most:.2%} of the plan's" + f", {own.over} iterations above" * (own.over > 0)
            moves = "yes" if own.moved else "no"
            ends = f"{own.run.losses[0]:.3f}, {own.run.losses[-1]:.3f}"
            text = f"{budget}, {own.budget / 2**20:.1f} MiB"
            print(
                row.format(name, text, own.plans, moves, f"{own.set_up:.0f}", ends, *same, peak), flush=True
            )


if __name__ == "__main__":
    main()
