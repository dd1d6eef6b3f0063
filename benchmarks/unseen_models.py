"""Models that no solver was tuned to: seconds of the whole `plan solve`, overhead and gap, with its defaults.

Untrained models of transformers, float32, profiled on this machine's CPU: keep it quiet meanwhile. Run anew
for each budget, one run each; a refusal is shown as it is said.

    python benchmarks/unseen_models.py [NAME …] [--budgets 75,60,45]
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any

import torch
import transformers as hub


def images(model, batch):
    return model, {"pixel_values": torch.randn(batch, 3, 64, 64), "labels": torch.randint(2, (batch,))}


def tokens(model, length):
    ids = torch.randint(4, 1000, (8, length))
    return model, {"input_ids": ids, "labels": ids}


def regnet():
    widths: dict[str, Any] = {
        "embedding_size": 16,
        "hidden_sizes": [32, 64, 128, 256],
        "depths": [1, 2, 4, 1],
    }
    return images(hub.RegNetForImageClassification(hub.RegNetConfig(groups_width=16, **widths)), 16)


def swin():
    sizes: dict[str, Any] = {"image_size": 64, "patch_size": 2, "embed_dim": 32, "window_size": 4}
    config = hub.SwinConfig(depths=[2, 2, 4], num_heads=[2, 4, 8], **sizes)
    return images(hub.SwinForImageClassification(config), 8)


def convnext():
    config = hub.ConvNextV2Config(hidden_sizes=[32, 64, 128, 256], depths=[2, 2, 4, 2], image_size=64)
    return images(hub.ConvNextV2ForImageClassification(config), 16)


def neox():
    sizes: dict[str, Any] = {"hidden_size": 128, "num_attention_heads": 4, "intermediate_size": 512}
    config = hub.GPTNeoXConfig(vocab_size=1000, num_hidden_layers=5, **sizes)
    return tokens(hub.GPTNeoXForCausalLM(config), 128)


def bart():
    layers: dict[str, Any] = {f"{side}_layers": 3 for side in ("encoder", "decoder")}
    heads: dict[str, Any] = {f"{side}_attention_heads": 4 for side in ("encoder", "decoder")}
    widths: dict[str, Any] = {f"{side}_ffn_dim": 512 for side in ("encoder", "decoder")}
    config = hub.BartConfig(vocab_size=1000, d_model=128, **layers, **heads, **widths)
    return tokens(hub.BartForConditionalGeneration(config), 96)


MODELS = ("regnet", "swin", "convnext", "neox", "bart")


PLAN = [sys.executable, "-c", "from memplan.cli.main import main; main()"]


def plan(*arguments):
    return subprocess.run([*PLAN, *arguments, "--quiet"], capture_output=True, text=True, check=False)


def solved(graph, budget, schedule):
    """In words."""
    asked = plan("solve", graph, "--budget", budget, "-o", schedule, "--json")
    reported = json.loads(asked.stdout or "{}")
    if "gap" not in reported:
        return reported.get("message", asked.stderr.strip())
    return f"{reported['overhead']:+.1%}, gap {reported['gap']:.1%}, {reported['status']}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*MODELS, []], metavar="NAME")
    parser.add_argument("--budgets", default="75,60,45")
    options = parser.parse_args()
    print("| model | budget | whole s | answer |\n|---|---|---|---|")
    with TemporaryDirectory() as folder:
        for name in options.names or MODELS:
            graph, schedule = str(Path(folder, f"{name}.json")), str(Path(folder, "schedule.json"))
            profiled = plan("profile", f"{__file__}:{name}", "-o", graph)
            if profiled.returncode:
                sys.exit(profiled.stderr)
            for percent in options.budgets.split(","):
                begun = monotonic()
                reported = solved(graph, f"{percent}%", schedule)
                print(f"| {name} | {percent} % | {monotonic() - begun:.1f} | {reported} |", flush=True)


if __name__ == "__main__":
    main()
