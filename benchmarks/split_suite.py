"""Thirty models at 70 % of their peak: are plans with splits to choose among slower than without them?

Protocol. The models of examples/ that build in seconds, and others drawn by a seed from the lists of
strangers_torch.py and strangers_transformers_*.py. Each is measured once by `plan profile --split any`. Whole
operations alone (`--split-fixed 0`) and the choice among all splits get the same solver and the same seconds
in all. Times are those of schedules of the same measured operations, over the baseline's, so they do not
depend on what else the machine runs; how far the search comes in its seconds does.

    python benchmarks/split_suite.py [NAME …] [--seconds 5] [--share 70%] [--seed 70] [--count 30]
"""

import argparse
import json
import random
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
OWN = ("mlp", "gpt2", "bert", "llama", "t5", "vit", "transformer", "resnet50", "unet")
PLAN = [sys.executable, "-c", "from memplan.cli.main import main; main()"]


def models() -> dict[str, object]:
    """By identifiers, functions that make the strangers' models."""
    from strangers_torch import TORCH
    from strangers_transformers_text import TEXT
    from strangers_transformers_vision import VISION

    made = {**TORCH, **TEXT, **VISION}
    names = {name: "".join(c if c.isalnum() else "_" for c in f"of_{name}") for name in made}
    return {names[name]: partial(built, make) for name, make in made.items()}


def built(make: Callable[[], Any]) -> tuple[object, ...]:
    """Return what a model file's function returns."""
    iteration = make()
    return iteration.module, iteration.inputs, *([iteration.loss_fn] if iteration.loss_fn else [])


def __getattr__(name: str) -> object:
    """`plan profile split_suite.py:NAME` asks for a model's function by name."""
    if name.startswith("of_") and (make := models().get(name)) is not None:
        return make
    raise AttributeError(name)


def plan(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*PLAN, *arguments, "--quiet"], capture_output=True, text=True, check=False)


def solved(graph: str, options: argparse.Namespace, *which: str) -> float | str:
    """Return the overhead, or what is said instead."""
    asked = plan(
        *("solve", graph, "--budget", options.share, "--time-limit", str(options.seconds), "--json", *which),
        *("-o", f"{graph}.schedule.json"),
    )
    reported = json.loads(asked.stdout or "{}")
    return reported.get("overhead", reported.get("error", asked.stderr.strip()))


def drawn(options: argparse.Namespace) -> list[str]:
    others = sorted(models())
    random.Random(options.seed).shuffle(others)
    return [*OWN, *others]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--share", default="70%")
    parser.add_argument("--seed", type=int, default=70)
    parser.add_argument("--count", type=int, default=30)
    options = parser.parse_args()
    print("| model | splits | overhead as a whole | overhead of the choice |\n|---|---|---|---|")
    left = options.count
    with TemporaryDirectory() as folder:
        for name in options.names or drawn(options):
            file = f"{EXAMPLES / name}.py" if name in OWN else f"{__file__}:{name}"
            graph = str(Path(folder, f"{name}.json"))
            profiled = plan("profile", file, "--split", "any", "-o", graph)
            if profiled.returncode:
                print(f"| {name} | {profiled.stderr.strip().splitlines()[-1:]} | | |", flush=True)
                continue
            splits = len(json.loads(Path(graph).read_text()).get("splits", ()))
            found = [solved(graph, options, *which) for which in (("--split-fixed", "0"), ())]
            shown = (f"{each:.2%}" if isinstance(each, float) else str(each) for each in found)
            print(f"| {name} | {splits} | {' | '.join(shown)} |", flush=True)
            left -= 1
            if not left:
                break


if __name__ == "__main__":
    main()
