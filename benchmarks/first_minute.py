"""Seconds from the start of a process to the end of its first training iteration, by phase.

Protocol. Each start is a process of its own. Three starts share the caches of compiled code and of plans:

    first      both are empty
    new plan   the solvers are compiled, and nothing is known of the model
    later      the plan is known as well

By phase: seconds of wall time, and in brackets seconds of processor time, children's included, which a busy
machine disturbs less. `import` is that of memplan after torch and the model's library, `layouts` the part of
tracing by the kernels' own layouts; the first step is one training iteration after `optimize`, with that of
eager PyTorch that it is compared with. PyTorch's own import and the making of the model come before and are
not counted, and the second step, which is compared too, is after the first minute.

    python benchmarks/first_minute.py [MODEL ...] [--budget 90%] [--threads 2] [--no-verify]
        [--starts first ...]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

STARTS = ("first", "new plan", "later")
SECOND = "second step"


def _gpt2_small() -> tuple[Any, Any, dict[str, Any]]:
    from gpt2 import build

    return *build(layers=12, width=768, heads=12, vocabulary=50257, batch=2, length=256), {}


def _gpt2_of_three() -> tuple[Any, Any, dict[str, Any]]:
    from gpt2 import build

    return *build(layers=3, width=128, heads=4, vocabulary=1000, batch=4, length=64), {}


def _dit() -> tuple[Any, Any, dict[str, Any]]:
    """A diffusion transformer of three layers: patches, adaptive norms, noise that is predicted."""
    import torch
    from torch import nn

    class Layer(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.norms = nn.ModuleList(nn.LayerNorm(width, elementwise_affine=False) for _ in range(2))
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.mlp = nn.Sequential(
                nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width)
            )
            self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))

        def forward(self, x: Any, condition: Any) -> Any:
            a, b, c, d, e, f = self.modulation(condition).unsqueeze(1).chunk(6, dim=2)
            batch, length, width = x.shape
            given = self.norms[0](x) * (1 + a) + b
            q, k, v = self.qkv(given).view(batch, length, 3, 4, width // 4).permute(2, 0, 3, 1, 4)
            attended = nn.functional.scaled_dot_product_attention(q, k, v)
            x = x + c * self.out(attended.transpose(1, 2).reshape(batch, length, width))
            return x + f * self.mlp(self.norms[1](x) * (1 + d) + e)

    class Transformer(nn.Module):
        def __init__(self, width: int = 64) -> None:
            super().__init__()
            self.patches, self.time = nn.Conv2d(4, width, 2, 2), nn.Linear(1, width)
            self.classes = nn.Embedding(10, width)
            self.layers = nn.ModuleList(Layer(width) for _ in range(3))
            self.out = nn.Linear(width, 16)

        def forward(self, image: Any, time: Any, label: Any) -> Any:
            x = self.patches(image).flatten(2).transpose(1, 2)
            condition = self.time(time) + self.classes(label)
            for layer in self.layers:
                x = layer(x, condition)
            return self.out(x)

    torch.manual_seed(0)
    batch = (torch.randn(8, 4, 16, 16), torch.rand(8, 1), torch.randint(10, (8,)))
    return Transformer(), batch, {"targets": torch.randn(8, 64, 16), "loss_fn": nn.functional.mse_loss}


def _mlp() -> tuple[Any, Any, dict[str, Any]]:
    import torch
    from torch import nn

    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(128, 128), nn.LayerNorm(128), nn.GELU()) for _ in range(6)]
    targets = torch.randint(128, (512,))
    return (
        nn.Sequential(*layers),
        (torch.randn(512, 128),),
        {"targets": targets, "loss_fn": nn.functional.cross_entropy},
    )


MODELS: dict[str, Callable[[], tuple[Any, Any, dict[str, Any]]]] = {
    "gpt2-small": _gpt2_small,
    "gpt2-3": _gpt2_of_three,
    "dit-3": _dit,
    "mlp": _mlp,
}


class Phases:
    """Wall and processor seconds by phase; callable as a progress callback."""

    def __init__(self) -> None:
        self.seconds, self._phase, self._since = dict[str, list[float]](), "", _clocks()

    def __call__(self, event: Any) -> None:
        if event.phase != "train":
            self.enter(event.phase)

    def enter(self, phase: str) -> str:
        """Begin a phase. Returns the one before."""
        now, before = _clocks(), self._phase
        spent = self.seconds.setdefault(before, [0.0, 0.0])
        self.seconds[before] = [a + n - s for a, n, s in zip(spent, now, self._since, strict=True)]
        self._phase, self._since = phase, now
        return before

    def around(self, function: Callable[..., Any], phase: str) -> Callable[..., Any]:
        """Return the function, whose calls are a phase of their own."""

        def timed(*arguments: Any, **keywords: Any) -> Any:
            before = self.enter(phase)
            try:
                return function(*arguments, **keywords)
            finally:
                self.enter(before)

        return timed


def _clocks() -> list[float]:
    times = os.times()
    return [perf_counter(), times.user + times.system + times.children_user + times.children_system]


def start(model: str, budget: str, threads: int, verify: bool | None) -> None:
    """Plan a model and run one iteration. Prints the seconds as JSON."""
    import torch

    torch.set_num_threads(threads)
    module, inputs, more = MODELS[model]()
    phases = Phases()
    phases.enter("import")
    import memplan
    from memplan.training.plans import plan

    layouts = "trace_real_layouts"
    setattr(plan, layouts, phases.around(getattr(plan, layouts), "layouts"))
    phases.enter("rest")
    step = memplan.optimize(module, inputs, budget=budget, verify=verify, progress=phases, **more)
    phases.enter("first step")
    targets = {"targets": more["targets"]} if "targets" in more else {}
    given, named = ((), inputs) if isinstance(inputs, dict) else (inputs, {})
    for _step in range(2):
        step(*given, **named, **targets).backward()
        phases.enter(SECOND)
    phases.enter("")
    phases.seconds.pop("")
    print(json.dumps(phases.seconds))


def _row(model: str, name: str, phases: dict[str, list[float]], load: float) -> str:
    cells = ", ".join(f"{phase} {wall:.1f} ({cpu:.1f})" for phase, (wall, cpu) in phases.items())
    counted = [spent for phase, spent in phases.items() if phase != SECOND]
    wall, cpu = (sum(spent[place] for spent in counted) for place in (0, 1))
    return f"| {model} | {name} | {wall:.1f} ({cpu:.1f}) | {cells} | {load:.1f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=" ".join(MODELS))
    parser.add_argument("--budget", default="90%")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--no-verify", dest="verify", action="store_const", const=False)
    parser.add_argument("--starts", nargs="+", choices=STARTS, default=STARTS)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        start(options.models[0], options.budget, options.threads, options.verify)
        return
    print("| model | start | all s | by phase, s of wall (of processor) time | load |\n|---|---|---|---|---|")
    own = [argument for argument in sys.argv[1:] if argument not in options.models]
    for model in options.models or MODELS:
        with TemporaryDirectory() as folder:
            plans = Path(folder)
            for name in options.starts:
                plans = plans if name == "later" else Path(folder, name)
                environment = {"XDG_CACHE_HOME": str(plans), "NUMBA_CACHE_DIR": str(Path(folder, "compiled"))}
                load = os.getloadavg()[0]
                done = subprocess.run(
                    [sys.executable, __file__, model, "--one", *own],
                    env={**os.environ, **environment},
                    stdout=subprocess.PIPE,
                    check=True,
                )
                print(_row(model, name, json.loads(done.stdout.splitlines()[-1]), load), flush=True)


if __name__ == "__main__":
    main()
