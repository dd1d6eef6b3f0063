"""A Llama that never fits its device: weights in bfloat16 with float32 masters and moments, from files.

The model is made on `meta`, its weights lie in one file of safetensors a layer, and the device is emulated:
all that PyTorch allocates is counted, while it plans and while it trains, files that are mapped apart. It
must stay within the budget. Weights, masters and moments lie in host memory or where the plan moves them.
Then, in a process of its own, plain PyTorch trains the same weights on the same batches, each weight updated
as soon as its gradient is there (else the host is too small for both), with masters by hand. Losses and final
weights are compared bit by bit.

    python benchmarks/large_model.py [--layers 20] [--budget 2GB] [--iterations 3] [--plain no]
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
from hashlib import sha256
from pathlib import Path
from time import perf_counter

import memplan
import torch
from memplan.devices.measuring.live_bytes import live_peak
from memplan.devices.storage.host_access import at_home
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

RATE = 1e-3


def model(layers: int, width: int) -> nn.Module:
    """On meta; at 20 layers of width 2048 it has 1.01 billion parameters."""
    from accelerate import init_empty_weights
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=32000,
        hidden_size=width,
        intermediate_size=11 * width // 4,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        num_key_value_heads=width // 512,
        max_position_embeddings=2048,
        use_cache=False,
    )
    with init_empty_weights():
        return LlamaForCausalLM(config).bfloat16().train()


def write_weights(module: nn.Module, folder: Path) -> None:
    """A file for each layer, and one for what is in none."""
    torch.manual_seed(0)
    files: dict[str, dict[str, Tensor]] = {}
    for name, tensor in module.state_dict().items():
        parts = name.split(".")
        values = torch.ones(tensor.shape) if "norm" in name else 0.02 * torch.randn(tensor.shape)
        layer = parts[2] if parts[1] == "layers" else "others"
        files.setdefault(layer, {})[name] = values.to(tensor.dtype)
        if parts[-2] == "post_attention_layernorm":
            save_file(files.pop(layer), folder / f"layer-{layer}.safetensors")
    for layer, tensors in files.items():
        save_file(tensors, folder / f"{layer}.safetensors")


def batches(number: int, batch: int, length: int) -> list[dict[str, Tensor]]:
    tokens = torch.randint(32000, (number, batch, length), generator=torch.Generator().manual_seed(1))
    return [{"input_ids": each, "labels": each} for each in tokens]


def digest(module: nn.Module) -> str:
    """Of all weights, one at a time, wherever they lie."""
    found = sha256()
    with at_home():
        for tensor in module.state_dict().values():
            found.update(tensor.contiguous().view(torch.uint8).numpy())
    return found.hexdigest()[:12]


# ── the two runs ────────────────────────────────────────────────────────────────────────────────────


def planned(options: argparse.Namespace, folder: Path) -> tuple[list[float], str]:
    module = model(options.layers, options.width)
    optimizer = torch.optim.AdamW(module.parameters(), lr=RATE)
    data = batches(options.iterations, options.batch, options.length)
    start = perf_counter()
    made = live_peak(
        lambda: memplan.optimize(
            module,
            data[0],
            budget=options.budget,
            machine=options.machine,
            optimizer=optimizer,
            master_weights=True,
            weights=folder,
            time_limit=options.seconds,
            cache=False,
        )
    )
    step, set_up = made.result, perf_counter() - start
    mapped = sum(file.stat().st_size for file in folder.iterdir())
    print(
        f"set-up {set_up:.0f} s, counted {made.peak_bytes - mapped:,} B beside the mapped files", flush=True
    )
    seconds: list[float] = []

    def train(batch: dict[str, Tensor]) -> float:
        begin = perf_counter()
        loss = float(step(**batch).detach())
        seconds.append(perf_counter() - begin)
        print(f"  loss {loss:.6f}, {seconds[-1]:.1f} s", flush=True)
        return loss

    found = live_peak(lambda: [train(batch) for batch in data])
    figures, parameters = step.plan.figures, list(module.parameters())
    size, count = sum(p.nbytes for p in parameters), sum(p.numel() for p in parameters)
    print(f"{count:,} parameters: weights {size:,} B; masters and moments {12 * count:,} B")
    print(f"budget {step.plan.budget:,} B, planned {figures.peak:,} B, counted {found.peak_bytes:,} B")
    print(f"planned {figures.time:.1f} s an iteration", step.report(), sep="\n")
    return found.result, digest(module)


def baseline(options: argparse.Namespace, folder: Path) -> tuple[list[float], str]:
    module = model(options.layers, options.width)
    state: dict[str, Tensor] = {}
    for file in folder.glob("*.safetensors"):
        state |= load_file(file)
    module.load_state_dict(state, assign=True)
    del state
    for parameter in module.parameters():
        _update_when_ready(parameter)
    losses: list[float] = []
    for batch in batches(options.iterations, options.batch, options.length):
        loss = module(**batch).loss
        loss.backward()
        losses.append(float(loss.detach()))
        print(f"  loss {losses[-1]:.6f}", flush=True)
    return losses, digest(module)


def _update_when_ready(parameter: nn.Parameter) -> None:
    """Its master's AdamW steps right behind its gradient."""
    low = parameter.dtype != torch.float32
    master = nn.Parameter(parameter.detach().float()) if low else parameter
    optimizer = torch.optim.AdamW([master], lr=RATE, foreach=False)

    def update(weight: Tensor) -> None:
        assert weight.grad is not None
        gradient, weight.grad = weight.grad, None
        master.grad = gradient.float()
        optimizer.step()
        master.grad = None
        if low:
            with torch.no_grad():
                weight.copy_(master)

    parameter.register_post_accumulate_grad_hook(update)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--layers", type=int, default=20)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--budget", default="2GB")
    parser.add_argument("--machine", default="rtx3060")
    parser.add_argument("--iterations", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=60, help="for the solver")
    parser.add_argument("--plain", default="yes")
    parser.add_argument("--run", default="", help="one of the two alone, with the weights of --files")
    parser.add_argument("--files", type=Path)
    options = parser.parse_args()
    if options.run:
        losses, weights = (planned if options.run == "planned" else baseline)(options, options.files)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(
            f"{options.run}: process peak {peak / 1e9:.1f} GB, losses {losses}, weights {weights}", flush=True
        )
        return
    with tempfile.TemporaryDirectory() as folder:
        write_weights(model(options.layers, options.width), Path(folder))
        for run in ("planned", "plain") if options.baseline == "yes" else ("planned",):
            command = [sys.executable, __file__, *sys.argv[1:], "--run", run, "--files", folder]
            subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
