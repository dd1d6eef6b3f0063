"""Profile the models that the solvers are compared on, each into a graph file, by `plan profile`.

Protocol. Models of examples/, with as many layers and samples as said below; measured on the CPU with one
thread, or (GPT-2 of 12 and 48 layers, the Transformer of 24 + 24) estimated for an A100; those with AdamW
have its updates during backward. What the folder has is left as it is: times differ from run to run, so a
comparison needs one set of files. The corpus `models` of `plan instances` is such a set.

    python benchmarks/model_graphs.py FOLDER [MODEL …]
    plan bench FOLDER --time-limit 60 -o rows.csv
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
PLAN = [sys.executable, "-c", "from memplan.cli.main import main; main()"]

MODEL_FILE = """
import sys
sys.path.insert(0, {examples!r})
import {example}
def build():
    return {example}.build({arguments})
"""


class Model(NamedTuple):
    """example: a file of examples/. arguments: of its `build`. gpu: to estimate for, where not measured.
    optimizer: whose updates are in the graph."""

    example: str
    arguments: str = ""
    gpu: str = ""
    optimizer: str = ""


MODELS = {
    "gpt2-6": Model("gpt2", "layers=6"),
    "gpt2-6-adamw": Model("gpt2", "layers=6", optimizer="adamw"),
    "gpt2-6-b16-adamw": Model("gpt2", "layers=6, batch=16", optimizer="adamw"),
    "gpt2-12": Model("gpt2", "layers=12"),
    "resnet50": Model("resnet50"),
    "resnet50-b32": Model("resnet50", "batch=32"),
    "resnet50-adamw": Model("resnet50", optimizer="adamw"),
    "unet-16": Model("unet"),
    "unet-16-b8": Model("unet", "batch=8"),
    "transformer-3": Model("transformer", "layers=3"),
    "transformer-6": Model("transformer", "layers=6"),
    "bert-6": Model("bert", "layers=6"),
    "bert-6-b16": Model("bert", "layers=6, batch=16"),
    "bert-6-adamw": Model("bert", "layers=6", optimizer="adamw"),
    "t5-3": Model("t5"),
    "t5-3-b16": Model("t5", "batch=16"),
    "gpt2-12-a100": Model("gpt2", "layers=12", "a100"),
    "gpt2-48-a100": Model("gpt2", "layers=48", "a100"),
    "transformer-24-a100": Model("transformer", "layers=24", "a100"),
}


def profile(name: str, model: Model, destination: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"{name}.py"
        places = {"examples": str(EXAMPLES), "example": model.example, "arguments": model.arguments}
        file.write_text(MODEL_FILE.format(**places))
        how = ["--estimate", "--gpu", model.gpu] if model.gpu else []
        updates = ["--optimizer", model.optimizer] if model.optimizer else []
        command = [*PLAN, "profile", file.name, *how, *updates, "-o", str(destination)]
        subprocess.run(command, cwd=folder, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=", ".join(MODELS))
    options = parser.parse_args()
    if unknown := set(options.models) - set(MODELS):
        parser.error(f"no such model: {', '.join(sorted(unknown))}; there are {', '.join(MODELS)}")
    options.folder.mkdir(parents=True, exist_ok=True)
    for name in options.models or MODELS:
        destination = options.folder.resolve() / f"{name}.json"
        if destination.exists():
            print(f"{destination} is there already")
        else:
            profile(name, MODELS[name], destination)


if __name__ == "__main__":
    main()
