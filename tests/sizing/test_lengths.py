"""Samples of many lengths: what the caching allocator reserves, against replays by hand and other traces."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import memplan
import numpy as np
import pytest
from memplan.graphs.errors import InputError, MemplanError
from memplan.graphs.machines.presets import find_preset
from memplan.planner.addresses.caching_allocator import (
    CachingAllocator,
    ExpandableSegments,
    reserved_peak,
    serve,
)
from memplan.planner.addresses.lifetimes import WORKSPACE, Lifetimes, lifetimes_without_transfers
from memplan.planner.baseline import baseline_schedule
from memplan.sizing.lengths import (
    BATCHES,
    ByLength,
    Lengths,
    many_lengths,
    parse_lengths,
    traced_lengths,
)
from memplan.sizing.loops import Loops
from memplan.sizing.question import Room
from memplan.sizing.subject import LoopOptions, open_subject

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 2048,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 1024,
    "dtype": "bfloat16",
}
PRESET, BATCH, CONSTANT = find_preset("rtx3060"), 4, 8_519_680
ROOM = Room(2**34, CONSTANT, 0)


@pytest.fixture(scope="module")
def loops_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Loops]:
    path = tmp_path_factory.mktemp("model") / "config.json"
    path.write_text(json.dumps(CONFIG))
    opened: dict[str | None, Loops] = {}

    def loops(attention: str | None = None) -> Loops:
        if attention not in opened:
            loop = LoopOptions(attention=attention)
            words = str(path), 1024, None, "adamw", "in-backward"
            subject = open_subject(*words, loop=loop, report=lambda _line: None, cached=False)
            opened[attention] = Loops(subject.estimates, PRESET, of_length=subject.of_length)
        return opened[attention]

    return loops


def replayed(iterations: list[Lifetimes], allocator: CachingAllocator) -> int:
    """Allocate and free step by step, by each copy's key, as the rules are written down."""
    held: dict[object, tuple[int, object]] = {}
    for number, rows in enumerate(iterations):
        columns = rows.tensor, rows.size, rows.start, rows.end
        copies = [*zip(*(column.tolist() for column in columns), strict=True)]
        for tensor, size, start, end in copies:
            if (start, end) == (0, rows.steps):
                before = held.get(tensor)
                if before is None or before[0] != size:
                    if before is not None:
                        allocator.free(before[1])  # pyright: ignore[reportArgumentType]
                    held[tensor] = size, allocator.malloc(size)
        for step in range(rows.steps + 1):
            for key in [key for key in held if isinstance(key, tuple) and key[:2] == (number, step)]:
                allocator.free(held.pop(key)[1])  # pyright: ignore[reportArgumentType]
            for place, (_tensor, size, start, end) in enumerate(copies):
                if start == step and (start, end) != (0, rows.steps):
                    held[number, end, place] = size, allocator.malloc(size)
    return allocator.reserved_peak


@pytest.mark.parametrize("attention", [None, "eager"])
def test_between_traced_lengths_bytes_and_seconds_are_those_of_a_trace(
    loops_of: Callable[..., Loops], attention: str | None
) -> None:
    """Scores of eager attention grow with the square of the length."""
    loops = loops_of(attention)
    traced = {one: loops.at_length(one).ordinary(BATCH).worst for one in (1024, 576, 128)}
    graph = loops.at_length(344).ordinary(BATCH).worst
    schedule = baseline_schedule(graph)
    way = ByLength(traced, schedule)
    found, expected = way.lifetimes(344), lifetimes_without_transfers(graph, schedule)
    for column in ("tensor", "start", "end"):
        assert np.array_equal(getattr(found, column), getattr(expected, column))
    tensors = found.tensor != WORKSPACE
    assert np.abs(found.size - expected.size)[tensors].max() <= 2048
    # Some workspaces are of blocks of 128 tokens.
    assert found.size.tolist() == pytest.approx(expected.size.tolist(), rel=0.15, abs=2048)
    assert found.live().max() == pytest.approx(expected.live().max(), rel=0.002)
    exact = ByLength({344: graph}, schedule)
    assert way.seconds(344) == pytest.approx(exact.seconds(344), rel=0.1)


def test_one_length_has_the_figures_of_a_loop_of_that_length(loops_of: Callable[..., Loops]) -> None:
    loops = loops_of()
    span = loops.unplanned_span(BATCH, CONSTANT)
    found = many_lengths(loops, Lengths([1024]), BATCH, ROOM)
    as_it_is, checkpointing = found.ways
    assert (as_it_is.allocated, as_it_is.high) == (span.expected, span.high)
    worst = loops.ordinary(BATCH).worst
    rows = lifetimes_without_transfers(worst, baseline_schedule(worst))
    assert as_it_is.reserved == reserved_peak(rows) + 2 * CONSTANT
    assert as_it_is.expandable == reserved_peak(rows, expandable=True) + 2 * CONSTANT
    assert as_it_is.seconds == pytest.approx(as_it_is.longest_seconds)
    assert checkpointing.allocated < as_it_is.allocated
    assert (found.batches, found.tokens) == (BATCHES, 1024)


def test_reserved_is_what_a_replay_by_hand_finds(loops_of: Callable[..., Loops]) -> None:
    loops = loops_of()
    traced = {one: loops.at_length(one).ordinary(BATCH).worst for one in (1024, 576, 128)}
    way = ByLength(traced, baseline_schedule(traced[1024]))
    padded = [500, 1024, 130, 777, 1024, 333, 900]
    rows = [way.lifetimes(one) for one in padded]
    assert way.reserved(padded, CachingAllocator(2**50)) == replayed(rows, CachingAllocator(2**50))
    assert way.reserved(padded, ExpandableSegments()) == replayed(rows, ExpandableSegments())


def test_more_lengths_reserve_no_less_and_expandable_segments_less(loops_of: Callable[..., Loops]) -> None:
    loops = loops_of()
    found = many_lengths(loops, Lengths(range(64, 1025)), BATCH, ROOM)
    alone = many_lengths(loops, Lengths([1024]), BATCH, ROOM)
    for way, one in zip(found.ways, alone.ways, strict=True):
        assert way.allocated == one.allocated <= way.expandable < way.reserved
        assert way.reserved > one.reserved
        assert way.high >= way.reserved
        assert way.seconds <= way.longest_seconds == one.longest_seconds
    wide = many_lengths(replace(loops, expandable=True), Lengths(range(64, 1025)), BATCH, ROOM)
    assert all(one.high < other.high for one, other in zip(wide.ways, found.ways, strict=True))
    traced = traced_lengths(Lengths(range(64, 1025)).padded(BATCH))
    assert traced[0] == 1024
    for length in traced:
        worst = loops.at_length(length).ordinary(BATCH).worst
        rows = lifetimes_without_transfers(worst, baseline_schedule(worst))
        assert found.ways[0].reserved >= 2 * CONSTANT + rows.live().max()


def test_a_batch_that_changes_is_allocated_anew() -> None:
    def rows(size: int) -> Lifetimes:
        tensor, sizes, start, end = np.array([[0, 1], [2**24, size], [0, 0], [2, 2]], np.int64)
        return Lifetimes(tensor, sizes, start, end, 2)

    def reserved(*sizes: int) -> int:
        allocator = CachingAllocator(2**40)
        serve(allocator, map(rows, sizes))
        return allocator.reserved_peak

    assert reserved(2**24, 2**24) == 2**25
    assert reserved(2**24, 2**25) == 2**24 + 2**24 + 2**25
    assert reserved(2**25, 2**24) == 2**24 + 2**25


def test_a_full_gpu_returns_free_segments_or_has_no_room(loops_of: Callable[..., Loops]) -> None:
    loops, lengths = loops_of(), Lengths(range(64, 1025))
    roomy = many_lengths(loops, lengths, BATCH, ROOM).ways[0]
    assert (roomy.fits, roomy.retries) == (True, 0)
    full = Room((roomy.reserved + roomy.expandable) // 2, CONSTANT, 0)
    returned = many_lengths(loops, lengths, BATCH, full).ways[0]
    assert returned.fits
    assert returned.retries > 0
    assert roomy.allocated <= returned.reserved <= full.limit <= returned.high
    small = many_lengths(loops, lengths, BATCH, Room(roomy.allocated - 1, CONSTANT, 0)).ways[0]
    assert (small.fits, small.retries, small.reserved) == (False, 0, roomy.reserved)
    assert small.high == roomy.high


def test_lengths_are_a_range_a_list_or_a_file(tmp_path: Path) -> None:
    assert parse_lengths("64-66").tokens == range(64, 67)
    assert parse_lengths(" 64, 512,2048").tokens == [64, 512, 2048]
    assert parse_lengths("512").tokens == [512]
    file = tmp_path / "tokens.txt"
    file.write_text("12\n\n 2048 \r\n7\n")
    lengths = parse_lengths(str(file))
    assert (lengths.tokens, lengths.words) == ([12, 2048, 7], "samples of 7 to 2,048 tokens")
    assert lengths.cut(100).tokens == [12, 100, 7]


def test_batches_are_padded_to_their_longest_and_the_longest_is_there() -> None:
    lengths = Lengths(range(1, 1001))
    one, many = lengths.padded(1), lengths.padded(8)
    assert one == lengths.padded(1)
    assert one[-1] == many[-1] == 1000
    assert len(one) == len(many) == BATCHES
    # The largest of n uniform numbers is n / (n + 1) on average.
    assert np.mean(one) == pytest.approx(500, abs=100)
    assert np.mean(many) == pytest.approx(889, abs=25)


def test_traced_lengths() -> None:
    assert traced_lengths([777] * 3) == [777]
    assert traced_lengths([2048, 900, 100]) == [2048, 1152, 256]
    assert traced_lengths([2048, 1800]) == [2048, 1920, 1800]
    assert traced_lengths([5, 3]) == [5, 4, 3]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("2048-64", "'2048-64': 2,048 tokens are more than 64: give 64-2048"),
        ("0-64", "'0-64': '0' is not a number of tokens"),
        ("64,", "'64,': '' is not a number of tokens"),
        ("64-99999999999", "'99999999999' is not a number of tokens"),
        ("", "'' is no range of tokens like 64-2048"),
        ("64..2048", "'64..2048' is no range of tokens like 64-2048, no list like 64,512,2048, and no file"),
    ],
)
def test_a_text_that_names_no_lengths_is_refused(text: str, line: str) -> None:
    with pytest.raises(InputError) as refusal:
        parse_lengths(text)
    assert line in str(refusal.value)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("12\nlong\n", "line 2: 'long' is not a number of tokens"),
        ("12\n-3\n", "line 2: '-3' is not a number of tokens"),
        ("12.5\n", "line 1: '12.5' is not a number of tokens"),
        ("\n \n", "is empty"),
        ("x" * 99, f"'{'x' * 40}…' is not"),
    ],
)
def test_a_file_that_has_no_lengths_is_refused(tmp_path: Path, text: str, line: str) -> None:
    file = tmp_path / "tokens.txt"
    file.write_text(text)
    with pytest.raises(InputError) as refusal:
        parse_lengths(str(file))
    assert str(refusal.value).startswith(f"{file}: ")
    assert line in str(refusal.value)
    with pytest.raises(MemplanError, match="folder"):
        parse_lengths(str(tmp_path))


def test_a_model_with_other_operations_at_another_length_is_refused(loops_of: Callable[..., Loops]) -> None:
    loops = loops_of()
    first, other = loops.ordinary(BATCH).worst, loops_of("eager").at_length(128).ordinary(BATCH).worst
    with pytest.raises(InputError, match="with 128 tokens the model runs other operations than with 1,024"):
        ByLength({1024: first, 128: other}, baseline_schedule(first))


def test_answers_have_a_row_for_each_loop_and_high_ends_of_all_lengths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("config.json").write_text(json.dumps(CONFIG))
    Path("tokens.txt").write_text("\n".join(map(str, range(64, 1025))))
    options = {"batch": 4, "solver": "store-all"}
    usual = memplan.size("config.json", "rtx3060", **options)
    answer = memplan.size("config.json", "rtx3060", lengths="tokens.txt", **options)
    found = answer.document()["lengths"]
    assert usual.document()["lengths"] is None
    assert found["samples"] == "samples of 64 to 1,024 tokens"
    assert [way["name"] for way in found["ways"]] == ["as it is", "gradient checkpointing"]
    (one,), (other,) = (each.document()["batches"] for each in (usual, answer))
    assert other["needs"] == {**one["needs"], "high": found["ways"][0]["high"]}
    assert other["needs"]["high"] > one["needs"]["high"]
    rows = {row["name"]: row["needs"] for row in answer.document()["next_steps"]["rows"]}
    assert {way["name"]: way["high"] for way in found["ways"]} == {
        name: rows[name]["high"] for name in ("as it is", "gradient checkpointing")
    }
    assert "samples of 64 to 1,024 tokens, each batch padded to its longest" in str(answer)
    assert "reserved after 128 batches" in str(answer)


@pytest.mark.parametrize(
    ("options", "line", "way_out"),
    [
        (
            {"lengths": "64-2048"},
            "the model has 1,024 positions, not 2,048: seq_len=1024 is the most",
            {"seq_len": 1024},
        ),
        ({"gpu": ["rtx3060", "a100"]}, "lengths= is of one GPU: several GPUs", {"gpu": "rtx3060"}),
        ({"ranks": 2, "link": "pcie4"}, "lengths= is of one GPU: ranks=", {"ranks": None, "link": None}),
        ({"model": "model.py"}, "give the model's config.json", {"model": "config.json"}),
        ({"lengths": [64, -5]}, "'64,-5' is no range", {"lengths": [64, 5]}),
    ],
)
def test_what_does_not_go_with_lengths_is_refused_and_the_way_out_works(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, object],
    line: str,
    way_out: dict[str, object],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("config.json").write_text(json.dumps(CONFIG))
    Path("model.py").write_text("def build(batch=1):\n    raise AssertionError\n")
    asked = {"model": "config.json", "gpu": "rtx3060", "lengths": "64-128", "batch": 1, "solver": "store-all"}
    with pytest.raises(MemplanError) as refusal:
        memplan.size(**{**asked, **options})  # pyright: ignore[reportArgumentType]
    assert line in str(refusal.value)
    assert memplan.size(**{**asked, **options, **way_out}).fits  # pyright: ignore[reportArgumentType]
