"""Training scripts of other packages, planned by a few lines: their own losses and weights, bit by bit.

Each script in tests/training_scripts is written as its package's examples are, for a small model.
Lines that end with `# memplan` are added to it, `# without memplan: …` gives the line that another replaces.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

FOLDER = Path(__file__).parents[1] / "training_scripts"
ADDED, REPLACED = "  # memplan", "  # without memplan: "

TRAINERS = {"run_clm", "sentence_transformers_pairs", "text_classification", "whisper_seq2seq"}
NEEDS = {
    "dcgan": "torch",
    "diffusers_unconditional": "diffusers",
    "dit": "torch",
    "dqn": "gymnasium",
    "fabric_language_model": "lightning",
    "gcn": "torch",
    "imagenet": "torch",
    "keras_loop": "keras",
    "lightning_autoencoder": "lightning",
    "lightning_gan": "lightning",
    "litgpt_single_device": "litgpt",
    "mnist": "torch",
    "moco": "torch",
    "nanogpt": "torch",
    "nlp_example": "accelerate",
    "ppo": "torch",
    "pyg_gat": "torch_geometric",
    "pyg_graph_classification": "torch_geometric",
    "run_clm": "accelerate",
    "sac": "torch",
    "sentence_transformers_pairs": "sentence_transformers",
    "text_classification": "accelerate",
    "text_to_image_lora": "diffusers",
    "timm_train": "timm",
    "torchtitan_single": "transformers",
    "vae": "torch",
    "whisper_seq2seq": "accelerate",
    "word_lstm": "torch",
    "word_transformer": "torch",
}


def unplanned(text: str) -> str:
    """Return a script without memplan."""
    lines: list[str] = []
    for line in text.splitlines():
        _planned, replaced, own = line.partition(REPLACED)
        if not line.endswith(ADDED):
            lines.append(line[: len(line) - len(line.lstrip())] + own if replaced else line)
    return "\n".join(lines)


def changed_lines(text: str) -> int:
    return sum(line.endswith(ADDED) or REPLACED in line for line in text.splitlines())


def trained(text: str, name: str, folder: Path, budget: str) -> tuple[list[float], dict[str, Tensor]]:
    """Run a script, and return its losses and the weights that it leaves."""
    torch.manual_seed(9)
    names: dict[str, Any] = {"__name__": name, "FOLDER": str(folder), "BUDGET": budget}
    code = compile(text, str(FOLDER / f"{name}.py"), "exec")
    exec(code, names)
    return names["losses"], {key: value.clone() for key, value in names["model"].state_dict().items()}


@pytest.mark.scripts
@pytest.mark.parametrize("name", sorted(NEEDS))
@pytest.mark.filterwarnings("ignore")
def test_a_planned_script_is_the_script(name: str, tmp_path: Path) -> None:
    pytest.importorskip(NEEDS[name])
    torch.set_num_threads(1)
    text = (FOLDER / f"{name}.py").read_text()
    losses, weights = trained(unplanned(text), name, tmp_path, "")
    own_losses, own_weights = trained(text, name, tmp_path, "100%")
    assert own_losses == losses
    assert len(losses) > 3
    assert own_weights.keys() == weights.keys()
    assert all(map(torch.equal, own_weights.values(), weights.values()))


@pytest.mark.parametrize("name", sorted(NEEDS))
def test_a_script_changes_by_a_few_lines(name: str) -> None:
    text = (FOLDER / f"{name}.py").read_text()
    assert "memplan" not in unplanned(text)
    assert 2 <= changed_lines(text) <= (2 if name in TRAINERS else 4)


@pytest.mark.parametrize("name", sorted(NEEDS))
def test_the_page_has_its_lines(name: str) -> None:
    page = (FOLDER.parents[1] / "docs" / "scripts.md").read_text()
    (row,) = (line for line in page.splitlines() if line.startswith(f"| `{name}` |"))
    assert int(row.split("|")[-2]) == changed_lines((FOLDER / f"{name}.py").read_text())
