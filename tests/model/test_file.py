"""A user's model file: what is accepted, and one line for every way it can be wrong."""

import sys

import pytest
import torch
from memplan.graphs.errors import InputError, MissingPackageError
from memplan.model.file import load_model_file

GOOD = """
import torch
def build():
    return torch.nn.Linear(2, 1), (torch.ones(3, 2),), torch.sum
def other():
    return torch.nn.Linear(2, 1), {"input": torch.ones(1, 2)}
"""


@pytest.fixture
def write(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)

    def file(text, name="model.py"):
        (tmp_path / name).write_text(text)
        return name

    return file


def test_the_default_entry(write):
    file = load_model_file(write(GOOD))
    assert (file.path, file.entry, file.name) == ("model.py", "build", "model")
    iteration = file.build()
    assert isinstance(iteration.module, torch.nn.Linear)
    assert iteration.loss_fn is torch.sum
    assert file.build().module is not iteration.module


def test_another_entry_by_name(write):
    file = load_model_file(f"{write(GOOD)}:other")
    assert file.entry == "other"
    assert set(file.build().inputs) == {"input"}


def test_a_file_imports_its_neighbours(write):
    write("WIDTH = 5", "neighbour_of_model.py")
    file = load_model_file(
        write("from neighbour_of_model import WIDTH\n" + GOOD.replace("(2, 1)", "(2, WIDTH)"))
    )
    assert file.build().module.out_features == 5


def test_two_files_of_one_name(write, tmp_path):
    (tmp_path / "below").mkdir()
    one = load_model_file(write(GOOD))
    two = load_model_file(write(GOOD.replace("(2, 1)", "(2, 7)"), "below/model.py"))
    assert (one.build().module.out_features, two.build().module.out_features) == (1, 7)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = 1", ["model.py", "build()"]),
        ("build = 3", ["model.py", "build()"]),
        ("\n\ndef build(:", ["model.py:3"]),
        ("x = 1\ny = x / 0", ["model.py:2", "ZeroDivisionError"]),
        ("def build():\n    return [][1]", ["model.py:2", "IndexError"]),
        ("def build():\n    return 3", ["a int", "(module, example_inputs)"]),
        ("def build():\n    return 3, 4", ["a int", "torch.nn.Module"]),
        (
            "import torch\ndef build():\n    return torch.nn.Identity(), torch.ones(1)",
            ["example_inputs is a Tensor", "not a tuple"],
        ),
        ("import torch\ndef build():\n    return torch.nn.Identity(), (), 5", ["loss_fn"]),
    ],
)
def test_a_wrong_file_is_one_line_that_names_it(write, text, words):
    with pytest.raises(InputError) as error:
        load_model_file(write(text)).build()
    line = str(error.value)
    assert "\n" not in line
    assert line.startswith("model.py")
    for word in words:
        assert word in line


@pytest.mark.parametrize("place", ["", "def build():\n    "])
def test_a_missing_package_is_named(write, place):
    with pytest.raises(MissingPackageError, match=r"model\.py: needs the package no_such_package"):
        load_model_file(write(f"{place}import no_such_package.part")).build()


LATE = """
def build():
    try:
        import no_such_package
    except ImportError as error:
        raise ModuleNotFoundError("Could not import module 'Config'"){cause}
"""
"""How transformers imports."""


@pytest.mark.parametrize("cause", [" from error", ""])
def test_a_missing_package_of_a_library_that_imports_late(write, cause):
    with pytest.raises(MissingPackageError, match=r"model\.py: needs the package no_such_package"):
        load_model_file(write(LATE.format(cause=cause))).build()


def test_a_missing_package_that_nobody_names(write):
    text = "def build():\n    raise ModuleNotFoundError('Could not import module Config')"
    with pytest.raises(
        InputError, match=r"model\.py:2: .*ModuleNotFoundError: Could not import module Config"
    ):
        load_model_file(write(text)).build()


@pytest.mark.parametrize(
    ("path", "words"), [("nowhere.py", "no such"), ("nowhere.py:build", "no such"), (".", "is a folder")]
)
def test_a_file_that_is_not_there(write, path, words):
    write(GOOD)
    with pytest.raises(InputError, match=words):
        load_model_file(path)


def test_a_file_that_is_no_python(write):
    with pytest.raises(InputError, match="not a Python file"):
        load_model_file(write("{}", "model.json"))
