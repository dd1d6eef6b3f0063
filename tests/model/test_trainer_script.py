"""Scripts of a Trainer run up to `train()`: without weights, without a trace, and refused in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from memplan.graphs.errors import InputError
from memplan.model.trainer_script import is_trainer_script, read_trainer_script
from trainer_scripts import CONFIG, SCRIPT


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
        (SCRIPT, True),
        ("from trl import SFTTrainer\nSFTTrainer('m').train()", True),
        ("import trl\ntrl.DPOTrainer('m').train()", True),
        ("from transformers import Trainer\ndef build(): ...\nTrainer().train()", False),
        ("from transformers import Trainer\nbuild = make\nTrainer().train()", False),
        ("from own import build, Trainer\nTrainer().train()", False),
        ("import torch\nmodel.train()", False),
        ("class Trainer: ...\nTrainer().train()", False),
        ("from transformers import Trainer\nclass OwnTrainer(Trainer): ...\nOwnTrainer().train()", True),
        ("from transformers import Trainer\nprint(Trainer)", False),
        ("def (", False),
    ],
)
def test_which_files_are_scripts_of_a_trainer(text: str, expected: bool) -> None:
    assert is_trainer_script(script(text)) == expected


@pytest.mark.scripts
def test_a_script_ends_at_train() -> None:
    transformers = pytest.importorskip("transformers")
    own = transformers.Trainer.train, transformers.PreTrainedModel.from_pretrained
    found = read_trainer_script(script(SCRIPT), ["--batch", "4"])
    assert own == (transformers.Trainer.train, transformers.PreTrainedModel.from_pretrained)
    assert found.kind == "Trainer"
    assert found.batch == {"input_ids": (4, 32), "labels": (4, 32)}
    given = found.arguments
    assert (given["bf16"], given["optim"], given["gradient_accumulation_steps"]) == (
        True,
        "adamw_bnb_8bit",
        3,
    )
    assert not Path("out").exists()
    iteration = found.file.build(6)
    assert {tensor.shape[0] for tensor in iteration.inputs.values()} == {6}  # pyright: ignore
    model: Any = iteration.module.module
    assert model.lm_head.weight is model.transformer.wte.weight  # still shared, after two copies
    assert len({id(tensor) for tensor in iteration.module.parameters()}) == len([*model.parameters()])


@pytest.mark.scripts
@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            SCRIPT.replace("float32)", "float32, load_in_8bit=True)"),
            r"bitsandbytes' in 4 bits .*--lora r=16 --quant",
        ),
        (
            SCRIPT.replace("float32)", 'float32, quantization_config={"quant_method": "gptq"})'),
            r"bitsandbytes' in 4 bits .*--lora r=16 --quant",
        ),
        (
            SCRIPT.replace("__name__ ==", "None =="),
            r"ends without a call of Trainer.train",
        ),
        (
            SCRIPT.replace("main()\n", "raise SystemExit(3)\n"),
            r"sys.exit\(3\).*script-args",
        ),
        (
            SCRIPT.replace("arange(32)", "nothing(32)"),
            r"its data fails: AttributeError",
        ),
        (
            SCRIPT.replace('"model"', '"absent"'),
            r"the script fails before it trains: OSError",
        ),
    ],
)
def test_what_can_not_be_read_is_refused(text: str, line: str) -> None:
    pytest.importorskip("transformers")
    with pytest.raises(InputError, match=line):
        read_trainer_script(script(text))
