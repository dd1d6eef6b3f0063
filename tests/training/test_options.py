"""Options stand once: signature, docstring, checks and what planners see are of one declaration."""

from __future__ import annotations

import inspect
from dataclasses import fields
from typing import Any

import memplan
import pytest
from memplan.graphs.errors import InputError
from memplan.training.module import ModuleOptions
from memplan.training.option import OptionsBase, UnfitError, option, takes
from memplan.training.options import Options, TrainerOptions
from memplan.training.trainer import ELSEWHERE


def half(number: int) -> float:
    if number < 0:
        raise UnfitError("give a number, 0 or more")
    return number / 2


class Few(OptionsBase):
    """Options of `halved`."""

    size: float = option(converter=half, text="Size in units.")
    other: float = option(converter=half, text="Another size.", default=4)


class More(Few):
    """Options with one more."""

    third: float = option(converter=half, text="A third.", default=10)


@takes(Few, example="size=3")
def halved(first: int, second: int, options: Few) -> tuple[int, int, float, float]:
    """Return all that is given.

    Args:
        first: a number.

    Returns:
        Four numbers.
    """
    return first, second, options.size, options.other


def test_values_are_read_by_the_converters_defaults_too() -> None:
    assert halved(1, 2, size=3) == (1, 2, 1.5, 2.0)
    assert halved(1, second=2, size=3, other=0) == (1, 2, 1.5, 0.0)  # pyright: ignore[reportCallIssue]


def test_values_that_have_been_read_are_not_read_a_second_time() -> None:
    more = Few(size=8).extended(More, third=6)
    assert (more.size, more.other, more.third) == (4.0, 2.0, 3.0)
    assert Few(size=8).extended(More).third == 5.0


@pytest.mark.parametrize(
    ("given", "error", "line"),
    [
        ({"size": -1}, InputError, r"^size=-1: give a number, 0 or more$"),
        ({"size": 1, "other": -7}, InputError, r"^other=-7: give a number"),
        ({"sise": 1}, TypeError, r"halved\(\) has no argument 'sise'\. Did you mean 'size'\?"),
        ({"size": 1, "x": 1}, TypeError, r"halved\(\) has no argument 'x'$"),
        ({}, TypeError, r"halved\(\) is missing the argument 'size'"),
    ],
)
def test_what_is_wrong_is_named(given: dict[str, Any], error: type[Exception], line: str) -> None:
    with pytest.raises(error, match=line):
        halved(1, 2, **given)


def test_options_are_not_given_by_position() -> None:
    with pytest.raises(
        InputError, match=r"halved takes first, second by position .*: halved\(first, second, size=3\)"
    ):
        halved(1, 2, 3)  # pyright: ignore


def test_help_lists_them_between_arguments_and_returns() -> None:
    assert str(inspect.signature(halved)).startswith(
        "(first: 'int', second: 'int', *, size: int, other: int = 4)"
    )
    lines = (inspect.getdoc(halved) or "").splitlines()
    assert lines.index("    size (int, required): Size in units.") > lines.index("    first: a number.")
    assert lines.index("    other (int, default 4): Another size.") < lines.index("Returns:")


@pytest.mark.parametrize(
    ("function", "options"),
    [
        (memplan.optimize, Options),
        (memplan.optimize_trainer, TrainerOptions),
        (memplan.optimize_module, ModuleOptions),
    ],
)
def test_public_functions_list_every_option(function: Any, options: type) -> None:
    names = {each.name for each in fields(options)}
    signature = inspect.signature(function)
    keywords = {x.name for x in signature.parameters.values() if x.kind is inspect.Parameter.KEYWORD_ONLY}
    assert keywords == names
    text = inspect.getdoc(function) or ""
    for name in names:
        assert f"    {name} (" in text
    assert text.index("Args:") < text.index("Returns:") < text.index("Raises:")


def test_each_option_of_optimize_is_taken_by_optimize_trainer_or_named_by_its_refusal() -> None:
    assert {each.name for each in fields(Options)} - {each.name for each in fields(TrainerOptions)} == {
        *ELSEWHERE
    }
    for name, line in ELSEWHERE.items():
        with pytest.raises(TypeError, match=f"^optimize_trainer\\(\\) has no argument '{name}': ") as refused:
            memplan.optimize_trainer(None, budget="60%", **{name: 1})  # pyright: ignore
        assert str(refused.value).endswith(line)
