"""Scripts with a loop of accelerate, run up to `backward`: which they are, what is read, what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from memplan.graphs.errors import InputError
from memplan.model.loop_script import is_loop_script, read_loop_script
from trainer_scripts import CONFIG, LOOP

LOOP = LOOP.replace("OWN_LOSS", "False")
IMAGES = """
import torch
from accelerate import Accelerator

accelerator = Accelerator()
model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.GELU(), torch.nn.Linear(5, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
loader = [(torch.randn(4, 6), torch.randint(3, (4,)))]
model, optimizer = accelerator.prepare(model, optimizer)
weight = torch.tensor([1.0, 2.0, 3.0])
for images, labels in loader:
    noise = torch.randn_like(images)
    output = model(images + noise)
    loss = torch.nn.functional.cross_entropy(output, labels, weight=weight)
    if loss.item() > 0:
        loss = loss + 0.1 * output.square().mean()
    loss = loss / 2
    accelerator.backward(loss)
"""


def script(text: str) -> Path:
    Path("train.py").write_text(text)
    return Path("train.py")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model").mkdir()
    Path("model/config.json").write_text(json.dumps(CONFIG))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (LOOP, True),
        ("import accelerate\na = accelerate.Accelerator()\nm = a.prepare(m)\na.backward(l)", True),
        ("from accelerate import Accelerator\nAccelerator().prepare(m)\nloss.sum()", False),
        ("from accelerate import Accelerator\ndef build(): ...\na.prepare(m)\na.backward(l)", False),
        ("def (", False),
    ],
)
def test_which_files_are_scripts_of_a_loop(text: str, expected: bool) -> None:
    assert is_loop_script(script(text)) == expected


@pytest.mark.scripts
def test_the_loss_is_the_scripts() -> None:
    """With values of the same inputs it is, bit by bit, what the script computes of them."""
    pytest.importorskip("accelerate")
    found = read_loop_script(script(IMAGES))
    assert found.arguments["optim"] == "SGD"
    assert sorted(found.batch.values()) == [(3,), (4,), (4, 6)]
    iteration = found.file.build(4)
    around: Any = iteration.module
    with torch.no_grad():
        for parameter in around.module.parameters():
            parameter.normal_()
    shapes = {name: tuple(tensor.shape) for name, tensor in iteration.inputs.items()}  # pyright: ignore
    given = {(4, 6): torch.randn(4, 6), (4,): torch.randint(3, (4,)), (3,): torch.tensor([1.0, 2.0, 3.0])}
    inputs = {name: given[shape] for name, shape in shapes.items()}
    output = around.module(given[4, 6])
    loss = torch.nn.functional.cross_entropy(output, given[4,], weight=given[3,])
    wanted = (loss + 0.1 * output.square().mean()) / 2
    assert torch.equal(around(**inputs), wanted)
    wider = found.file.build(6)
    assert sorted(tuple(tensor.shape) for tensor in wider.inputs.values()) == [(3,), (6,), (6, 6)]  # pyright: ignore


@pytest.mark.scripts
@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            LOOP.replace("__name__ ==", "None =="),
            r"ends without a call of accelerator.backward\(\).*build\(\)",
        ),
        (IMAGES.replace("loss = loss / 2", "model(images)"), r"runs prepared models 2 times before backward"),
        (IMAGES.replace("(loss)\n", "(weight.sum())\n"), r"its loss is not computed from its model's output"),
        (LOOP.replace('"model"', '"absent"'), r"the script fails before it trains: OSError"),
        (IMAGES.replace("randn_like", "nothing"), r"the script fails before it trains: AttributeError"),
        (LOOP.replace("main()\n", "raise SystemExit(3)\n"), r"sys.exit\(3\).*script-args"),
    ],
)
def test_what_can_not_be_read_is_refused(text: str, line: str) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    with pytest.raises(InputError, match=line):
        read_loop_script(script(text))
