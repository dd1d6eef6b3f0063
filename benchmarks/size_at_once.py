"""Processor time of the first stage of `plan size`: what fits without a plan, on one GPU and on all.

Protocol. Each run is a process of its own, on one thread. Two runs share a cache of traces: `first` finds it
empty, `later` traces nothing. Seconds are of the process, so that a busy machine disturbs them little; they
begin after the imports of PyTorch and memplan, which have a column, and end with the last row. `row` is the
time to the first row, `traces` the number of traces made.

    python benchmarks/size_at_once.py [MODEL ...] [--gpu rtx4090 --gpu all] [--rows FOLDER]

--rows: writes the rows as JSON to FOLDER, to be compared with those of another version.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time
from typing import Any

BERT = {
    "model_type": "bert",
    "architectures": ["BertForMaskedLM"],
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
}
LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "rope_theta": 500000.0,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "bfloat16",
}
QWEN = {
    "model_type": "qwen2",
    "architectures": ["Qwen2ForCausalLM"],
    "hidden_size": 3584,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "intermediate_size": 18944,
    "vocab_size": 152064,
    "max_position_embeddings": 32768,
    "rope_theta": 1000000.0,
    "torch_dtype": "bfloat16",
}
VIT = {
    "model_type": "vit",
    "architectures": ["ViTForImageClassification"],
    "hidden_size": 1280,
    "num_hidden_layers": 32,
    "num_attention_heads": 16,
    "intermediate_size": 5120,
    "patch_size": 14,
}
CNN = """
import torch
from torch import nn


def convolution(inputs, outputs, size, stride=1):
    return [nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False), nn.BatchNorm2d(outputs)]


class Bottleneck(nn.Module):
    def __init__(self, inputs, width, stride):
        super().__init__()
        outputs = 4 * width
        self.body = nn.Sequential(
            *convolution(inputs, width, 1), nn.ReLU(inplace=True),
            *convolution(width, width, 3, stride), nn.ReLU(inplace=True),
            *convolution(width, outputs, 1),
        )
        self.short = nn.Sequential(*(convolution(inputs, outputs, 1, stride) if inputs != outputs else []))

    def forward(self, x):
        return torch.relu(self.body(x) + self.short(x))


def build(batch=8):
    layers, inputs = [*convolution(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)], 64
    for width, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for number in range(count):
            layers.append(Bottleneck(inputs, width, stride if number == 0 else 1))
            inputs = 4 * width
    net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 1000))
    return net, (torch.ones(batch, 3, 224, 224),), torch.sum
"""
MODELS: dict[str, Any] = {
    "bert-large": BERT,
    "llama-3-8b": LLAMA,
    "qwen2.5-7b": QWEN,
    "vit-h": VIT,
    "cnn": CNN,
}


def write_model(name: str, folder: Path) -> Path:
    """Write a model's file and return its path."""
    model = MODELS[name]
    path = folder / name / ("model.py" if isinstance(model, str) else "config.json")
    path.parent.mkdir(exist_ok=True)
    path.write_text(model if isinstance(model, str) else json.dumps(model))
    return path


def run(path: str, gpu: str) -> None:
    """Run the first stage and print its seconds and rows as JSON."""
    import torch
    from memplan.graphs.collector import collector_seldom
    from memplan.sizing.request import SizeRequest

    torch.set_num_threads(1)
    begin, reports, first = process_time(), list[str](), 0.0
    with collector_seldom() as leave_out_all:
        request = SizeRequest(path, gpu)
        sizing = request.sizing(request.presets(reports.append), reports.append, reports.append)
        leave_out_all()
        rows = list[Any]()
        for row in sizing.at_once():
            first = first or process_time() - begin
            rows.append({"machine": row.preset.name, "ways": [way._asdict() for way in row.ways]})
    figures = {
        "imports": begin,
        "row": first,
        "all": process_time() - begin,
        "traces": sum(": tracing for" in line for line in reports),
    }
    print(json.dumps([figures, rows]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=" ".join(MODELS))
    parser.add_argument("--gpu", action="append", metavar="NAME")
    parser.add_argument("--rows", type=Path, metavar="FOLDER")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        run(options.models[0], options.gpu[0])
        return
    print("| model | GPUs | run | imports s | row s | all s | traces |\n|---|---|---|---|---|---|---|")
    for name in options.models or MODELS:
        for gpu in options.gpu or ("rtx4090", "all"):
            with TemporaryDirectory() as folder:
                path = write_model(name, Path(folder))
                for start in ("first", "later"):
                    done = subprocess.run(
                        [sys.executable, __file__, str(path), "--one", "--gpu", gpu],
                        env={**os.environ, "XDG_CACHE_HOME": folder, "OMP_NUM_THREADS": "1"},
                        stdout=subprocess.PIPE,
                        check=True,
                    )
                    figures, rows = json.loads(done.stdout.splitlines()[-1])
                    seconds = [f"{figures[each]:.1f}" for each in ("imports", "row", "all")]
                    cells = name, gpu, start, *seconds, str(figures["traces"])
                    print("| " + " | ".join(cells) + " |", flush=True)
                if options.rows is not None:
                    options.rows.mkdir(exist_ok=True)
                    (options.rows / f"{name}-{gpu}.json").write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
