"""Training scripts of other packages, planned by a line or two: their own losses and weights, bit by bit.

Each script in tests/training_scripts is written as its package's examples are, for a small model from a config.
Lines that end with `# memplan` are added to it, `# plain: …` gives the line that another replaces.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

FOLDER = Path(__file__).parents[1] / "training_scripts"
ADDED, REPLACED = "  # memplan", "  # plain: "

TRAINERS = {"whisper_seq2seq", "sentence_transformers_pairs"}
NEEDS = {
    "dqn": "gymnasium",
    "fabric_language_model": "lightning",
    "litgpt_single_device": "litgpt",
    "moco": "torch",
    "pyg_graph_classification": "torch_geometric",
    "sac": "torch",
    "sentence_transformers_pairs": "sentence_transformers",
    "text_to_image_lora": "diffusers",
    "torchtitan_single": "transformers",
    "whisper_seq2seq": "transformers",
}


def plain(text: str) -> str:
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
@pytest.mark.parametrize("budget", ["100%", "85%"])
@pytest.mark.parametrize("name", sorted(NEEDS))
@pytest.mark.filterwarnings("ignore")
def test_a_planned_script_is_the_script(name: str, budget: str, tmp_path: Path) -> None:
    pytest.importorskip(NEEDS[name])
    torch.set_num_threads(1)
    text = (FOLDER / f"{name}.py").read_text()
    losses, weights = trained(plain(text), name, tmp_path, "")
    own_losses, own_weights = trained(text, name, tmp_path, budget)
    assert own_losses == losses
    assert len(losses) > 3
    assert own_weights.keys() == weights.keys()
    assert all(map(torch.equal, own_weights.values(), weights.values()))


@pytest.mark.parametrize("name", sorted(NEEDS))
def test_a_script_changes_by_a_few_lines(name: str) -> None:
    text = (FOLDER / f"{name}.py").read_text()
    assert "memplan" not in plain(text)
    assert 2 <= changed_lines(text) <= (2 if name in TRAINERS else 4)
