"""Models from Hugging Face configurations: which class, which batch, and what is refused in one line."""

from __future__ import annotations

import builtins
import json
import sys

import pytest
import torch
from memplan.graphs.errors import InputError, MissingPackageError
from memplan.graphs.graph import Kind
from memplan.graphs.machines.presets import find_preset
from memplan.model.hugging_face import is_configuration, load_configuration
from memplan.profiling.profile.estimate import estimate_file

SMALL = {"num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 2, "vocab_size": 100}
GPT2 = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_layer": 1, "n_embd": 32, "n_head": 2,
        "n_positions": 128, "vocab_size": 100, "bos_token_id": 0, "eos_token_id": 0}  # fmt: skip
LLAMA = {"model_type": "llama", **SMALL, "intermediate_size": 64, "torch_dtype": "bfloat16",
         "max_position_embeddings": 4096}  # fmt: skip
ROBERTA = {"model_type": "roberta", "architectures": ["RobertaModel"], **SMALL, "intermediate_size": 64,
           "max_position_embeddings": 514}  # fmt: skip
VIT = {"model_type": "vit", "architectures": ["ViTForImageClassification"], "num_hidden_layers": 1,
       "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64, "image_size": 32,
       "patch_size": 8}  # fmt: skip
T5 = {"model_type": "t5", "architectures": ["T5ForConditionalGeneration"], "d_model": 32, "d_ff": 64,
      "d_kv": 16, "num_layers": 1, "num_heads": 2, "vocab_size": 99, "decoder_start_token_id": 0}  # fmt: skip
GEMMA3 = {"model_type": "gemma3", "architectures": ["Gemma3ForSequenceClassification"],
          "text_config": {**SMALL, "num_key_value_heads": 1, "head_dim": 16, "intermediate_size": 64,
                          "max_position_embeddings": 64, "pad_token_id": None},
          "vision_config": {"num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 2,
                            "intermediate_size": 64, "image_size": 32, "patch_size": 16},
          "mm_tokens_per_image": 4}  # fmt: skip
BERT = {"model_type": "bert", **SMALL, "intermediate_size": 64, "max_position_embeddings": 64}


def written(folder, document):
    path = folder / "config.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return path


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("document", "model", "length", "dtype"),
    [
        (GPT2, "GPT2LMHeadModel", 128, "float32"),
        (LLAMA, "LlamaForCausalLM", 1024, "bfloat16"),
        (ROBERTA, "RobertaForMaskedLM", 512, "float32"),
        (VIT, "ViTForImageClassification", None, "float32"),
        (T5, "T5ForConditionalGeneration", 512, "float32"),
        ({**BERT, "architectures": ["BertForSequenceClassification"]}, "BertForSequenceClassification", 64,
         "float32"),
        ({**BERT, "architectures": ["BertForQuestionAnswering"]}, "BertForQuestionAnswering", 64, "float32"),
    ],
)  # fmt: skip
def test_the_class_with_a_loss_is_built_without_memory_and_estimated(
    tmp_path, document, model, length, dtype
):
    file, made = load_configuration(str(written(tmp_path, document)))
    assert made == (model, length, dtype)
    graph = estimate_file(file, find_preset("a100"), batch=2)
    assert (graph.tensors.kind == Kind.PARAMETER_GRADIENT).any()
    assert graph.name == document["model_type"]


def test_a_classifier_of_images_and_text_pads_with_its_text(tmp_path):
    file, made = load_configuration(str(written(tmp_path, GEMMA3)))
    assert made == ("Gemma3ForSequenceClassification", 64, "float32")
    module, inputs, *_rest = file.build(2)
    assert isinstance(inputs, dict)
    assert module(**inputs).loss.requires_grad


def test_a_folder_its_file_and_the_choices(tmp_path):
    path = written(tmp_path, GPT2)
    assert is_configuration(str(tmp_path))
    assert is_configuration(str(path))
    assert not is_configuration(str(tmp_path / "model.py"))
    file, made = load_configuration(str(tmp_path), length=100, dtype="float16")
    assert (made.length, made.dtype, file.name) == (100, "float16", tmp_path.name)
    module, inputs, *_rest = file.build(3)
    assert isinstance(inputs, dict)
    assert {tensor.shape for tensor in inputs.values()} == {(3, 100)}
    assert {weight.dtype for weight in module.parameters()} == {torch.float16}


@pytest.mark.parametrize(
    ("document", "line"),
    [
        ("{", "is not JSON"),
        ("[1]", "it has no model_type"),
        ({"hidden_size": 3}, "it has no model_type"),
        ({"model_type": "no-such"}, "transformers can't read it"),
        ({**GPT2, "architectures": ["GPT9LMHeadModel"]}, "has no model GPT9LMHeadModel"),
        ({**GPT2, "architectures": ["AutoModelForCausalLM"]}, "has no model AutoModelForCausalLM"),
        ({**GPT2, "architectures": ["is_torch_available"]}, "has no model is_torch_available"),
        ({**GPT2, "architectures": [5]}, "is no list of names"),
        ({**GPT2, "architectures": "GPT2LMHeadModel"}, "is no list of names"),
        ({**BERT, "architectures": ["BertForMultipleChoice"]}, "there is no example batch for"),
        (
            {"model_type": "whisper", "architectures": ["WhisperForConditionalGeneration"]},
            "there is no example batch for WhisperForConditionalGeneration",
        ),
        ({**GPT2, "torch_dtype": "float64"}, "its weights are float64: choose one of float32"),
    ],
)
def test_what_is_refused(tmp_path, document, line):
    with pytest.raises(InputError, match=line) as refusal:
        load_configuration(str(written(tmp_path, document)))
    assert "\n" not in str(refusal.value)


def test_lengths_that_cannot_be(tmp_path):
    with pytest.raises(InputError, match="has 128 positions, not 129"):
        load_configuration(str(written(tmp_path, GPT2)), length=129)
    with pytest.raises(InputError, match="takes no tokens"):
        load_configuration(str(written(tmp_path, VIT)), length=8)
    with pytest.raises(InputError, match="no such file"):
        load_configuration(str(tmp_path / "other.json"))


def test_without_transformers_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingPackageError, match=r"pip install 'memplan\[examples\]'"):
        load_configuration(str(written(tmp_path, GPT2)))


def test_builtins_that_a_script_has_replaced_are_not_in_the_way(tmp_path, monkeypatch):
    path = written(tmp_path, GPT2)
    mine = lambda *_, **__: pytest.fail("not Python's own")  # noqa: E731
    for name in ("open", "print"):
        monkeypatch.setattr(builtins, name, mine)
    assert load_configuration(str(path))[1].model == "GPT2LMHeadModel"
    assert builtins.open is mine
