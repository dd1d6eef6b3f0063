"""Operations in pieces: the smallest budget with `split=True` and without, and the time at a share.

Protocol. A model's smallest budget is what a refusal names, with `split=True` and without, as a
share of eager PyTorch's peak (`.grad` counted, optimizer states in neither). At a share of that peak the plan
and eager PyTorch take turns in one process; the time is the median of the rounds' ratios of processor times.
The peak is that of live storage in one iteration.

    python benchmarks/split.py [case …] [--share 40%] [--rounds 5] [--seconds 10]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any, NamedTuple

import memplan
import torch
from memplan.devices.measuring.live_bytes import live_peak
from memplan.solvers.problem import InfeasibleError
from split_models import made
from torch import nn


class Case(NamedTuple):
    """A model with its batch. options: of `optimize`. given: of a step's call. eager: its loss."""

    module: nn.Module
    inputs: Any
    options: dict[str, Any]
    given: dict[str, Any]
    eager: Callable[[], torch.Tensor]


EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def language_model(kind: str) -> Case:
    import transformers

    torch.manual_seed(0)
    transformers.logging.set_verbosity_error()
    if kind == "gpt2":
        config: Any = transformers.GPT2Config(
            n_layer=4, n_embd=256, n_head=4, n_positions=256, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0
        )
        module: Any = transformers.GPT2LMHeadModel(config)
        words = torch.randint(config.vocab_size, (4, 256))
    else:
        module, words = llama(128256, 512, width=512, samples=2)
        import peft

        lora = peft.LoraConfig(r=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
        module = peft.get_peft_model(module, lora)
    return of_words(module, words)


def llama(
    known: int, tokens: int, *, width: int, samples: int = 1, attention: str = "sdpa"
) -> tuple[Any, torch.Tensor]:
    """Return a Llama of 4 layers and a batch. known: words of its vocabulary."""
    import transformers

    configured: Any = transformers.LlamaConfig
    config = configured(
        num_hidden_layers=4,
        hidden_size=width,
        intermediate_size=width * 43 // 16,
        num_attention_heads=8,
        vocab_size=known,
        max_position_embeddings=tokens,
        attn_implementation=attention,
    )
    return transformers.LlamaForCausalLM(config), torch.randint(known, (samples, tokens))


def of_words(module: Any, words: torch.Tensor) -> Case:
    batch = {"input_ids": words, "labels": words}
    return Case(module.train(), batch, {}, {}, lambda: module(**batch).loss)


def long_llama(tokens: int, attention: str = "sdpa") -> Case:
    torch.manual_seed(0)
    return of_words(*llama(32000, tokens, width=256, attention=attention))


def large_picture(attention: str = "sdpa", samples: int = 1) -> Case:
    """A vision transformer on pictures of 1,024 pixels: 4,097 tokens each."""
    import transformers

    torch.manual_seed(0)
    configured: Any = transformers.ViTConfig
    config = configured(
        hidden_size=192,
        num_hidden_layers=4,
        num_attention_heads=3,
        intermediate_size=768,
        image_size=1024,
        patch_size=16,
        num_labels=10,
        attn_implementation=attention,
    )
    module: Any = transformers.ViTForImageClassification(config).train()
    batch = {"pixel_values": torch.randn(samples, 3, 1024, 1024), "labels": torch.randint(10, (samples,))}
    return Case(module, batch, {}, {}, lambda: module(**batch).loss)


def example(name: str) -> Case:
    sys.path.insert(0, str(EXAMPLES))
    torch.manual_seed(0)
    module, inputs, loss, *targets = __import__(name).build()
    given = {"targets": targets[0]} if targets else {}
    return Case(module, inputs, {"loss_fn": loss}, given, lambda: loss(module(*inputs), *targets))


def small(name: str) -> Case:
    module, inputs = made(name)
    return Case(module, inputs, {}, {}, lambda: module(*inputs))


CASES: dict[str, Callable[[], Case]] = {
    **{kind: lambda kind=kind: language_model(kind) for kind in ("gpt2", "llama-lora")},
    **{f"llama-{tokens}": lambda tokens=tokens: long_llama(tokens) for tokens in (4096, 8192, 16384)},
    "llama-4096-eager": lambda: long_llama(4096, "eager"),
    "vit-1024": large_picture,
    "vit-1024-eager": lambda: large_picture("eager"),
    "vit-1024-of-4": lambda: large_picture(samples=4),
    **{name: lambda name=name: small(name) for name in ("mnist", "dcgan", "resnet18", "vae")},
    **{name: lambda name=name: example(name) for name in ("resnet50", "unet", "vit", "mlp")},
}


def planned(case: Case, budget: Any, seconds: float, *, split: bool) -> Any:
    return memplan.optimize(
        case.module,
        case.inputs,
        **case.options,
        **case.given,
        budget=budget,
        states=0,
        gradients="freed",
        split=split,
        time_limit=seconds,
        cache=False,
        progress=False,
    )


def smallest(make: Callable[[], Case], seconds: float, *, split: bool) -> float:
    """Return the smallest budget found, as a share of the baseline's peak."""
    try:
        planned(make(), "1%", seconds, split=split)
    except InfeasibleError as error:
        return (error.smallest or 0) / (error.peak or 1)
    return 0.01


def side_by_side(make: Callable[[], Case], share: str, rounds: int, seconds: float) -> str:
    case = make()
    module = case.module
    step = planned(case, share, seconds, split=True)
    size = sum(p.nbytes for p in module.parameters())

    def plan() -> None:
        step(case.inputs, **case.given).backward()
        module.zero_grad(set_to_none=True)

    def eager() -> None:
        case.eager().backward()
        module.zero_grad(set_to_none=True)

    for _ in range(3):  # eager PyTorch runs the first two as well
        plan()
    peaks = [live_peak(call).peak_bytes + size for call in (plan, eager)]
    ratios: list[float] = []
    for _ in range(rounds):
        times = [_time(call) for call in (plan, eager)]
        ratios.append(times[0] / times[1])
    regions = [name for name in step.plan.graph.operations.name if "_pieces" in name]
    return f"{peaks[0] / peaks[1]:.1%} of the peak, {median(ratios):.3f} of the time, {', '.join(regions)}"


def _time(call: Callable[[], None]) -> float:
    begun = process_time()
    call()
    return process_time() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", choices=[*CASES, []], default=[])
    parser.add_argument("--share", default="40%")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10)
    given = parser.parse_args()
    torch.set_num_threads(1)
    for name in given.cases or CASES:
        found = [smallest(CASES[name], given.seconds, split=split) for split in (False, True)]
        print(f"{name}: smallest budget {found[0]:.1%} before, {found[1]:.1%} in pieces", flush=True)
        try:
            print("   ", side_by_side(CASES[name], given.share, given.rounds, given.seconds), flush=True)
        except memplan.MemplanError as error:
            print(f"    {given.share}: {error}")


if __name__ == "__main__":
    main()
