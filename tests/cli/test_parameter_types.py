"""Times with units, and words in any case, in the options of commands."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest
from memplan.cli.main import COMMANDS, main
from memplan.cli.parameter_types import SECONDS, Word, dtype_word


def options() -> Iterator[click.Parameter]:
    for name in COMMANDS:
        command = main.get_command(click.Context(main), name)
        assert command is not None
        yield from command.params


@pytest.mark.parametrize(
    ("written", "seconds"), [("30", 30.0), ("30s", 30.0), ("1m", 60.0), ("1m30s", 90.0), (2.5, 2.5)]
)
def test_seconds(written: object, seconds: float) -> None:
    assert SECONDS.convert(written, None, None) == seconds


def test_every_option_for_a_time_takes_units() -> None:
    times = [one for one in options() if {"--time-limit", "--bound-time"} & {*one.opts}]
    assert len(times) == 12
    assert all(one.type is SECONDS for one in times)


@pytest.mark.parametrize("written", ["", "soon", "1week", "30x"])
def test_what_is_no_time(written: str) -> None:
    with pytest.raises(click.BadParameter, match="is not a time, like 30"):
        SECONDS.convert(written, None, None)


def test_choices_do_not_depend_on_case() -> None:
    words = [one.type for one in options() if isinstance(one.type, Word)]
    assert len(words) > 8
    for one in words:
        for word in one.choices:
            assert one.convert(word.upper(), None, None) == word
    others = [one for one in options() if isinstance(one.type, click.Choice) and one.type not in words]
    assert {max(one.opts, key=len) for one in others} == {"--lanes"}


def test_dtypes_have_the_spellings_of_other_tools() -> None:
    long, short = dtype_word(["float32", "bfloat16", "float16"]), dtype_word(["bf16", "fp16"])
    for said, name, autocast in (
        ("BF16", "bfloat16", "bf16"),
        ("bfloat16", "bfloat16", "bf16"),
        ("half", "float16", "fp16"),
        ("fp16", "float16", "fp16"),
    ):
        assert long.convert(said, None, None) == name
        assert short.convert(said, None, None) == autocast
    assert long.convert("fp32", None, None) == "float32"
    with pytest.raises(click.BadParameter):
        short.convert("fp32", None, None)


def test_a_word_has_a_list() -> None:
    with pytest.raises(click.BadParameter, match="adamw"):
        Word(["adamw", "sgd"]).convert("adamx", None, None)


def test_devices_in_any_case() -> None:
    devices = [one for one in options() if "--device" in one.opts and one.type is not click.INT]
    assert len(devices) == 5  # optimize, profile, run, train, machine
    for one in devices:
        ctx = click.Context(main)
        assert one.process_value(ctx, "CUDA:1") == "cuda:1"
        assert one.process_value(ctx, None) is None
