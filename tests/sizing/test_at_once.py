"""What fits without a plan: as the simulator says batch by batch, and as the whole search says later."""

from __future__ import annotations

from pathlib import Path

import pytest
from memplan.graphs.errors import InputError
from memplan.graphs.machines.presets import find_preset, presets
from memplan.model.quantised import KINDS
from memplan.planner.baseline import baseline
from memplan.planner.simulator.simulate import figures_of
from memplan.profiling.profile.estimates import Estimates
from memplan.sizing import question
from memplan.sizing.at_once import (
    ADAPTERS,
    AS_IT_IS,
    CHECKPOINTING,
    EIGHT_BIT,
    LORA,
    LORA_CHECKPOINTING,
    AtOnceSearch,
)
from memplan.sizing.loops import NO_LINKS, Loops
from memplan.sizing.outline import Outline
from memplan.sizing.question import Room
from memplan.sizing.sizing import ASKED_FIRST, Sizing
from memplan.sizing.subject import QUANTIZED, LoopOptions, Subject, open_subject
from memplan.sizing.trial import TOLERANCE
from memplan.sizing.words import minutes
from memplan.solvers.problem import NotFoundError, Problem
from memplan.solvers.registry.run import solve

MODEL = """
import torch
from torch import nn

class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(128, 512), nn.GELU(), nn.Linear(512, 128))

    def forward(self, x):
        return x + self.body(x)

def build(batch=8):
    return nn.Sequential(*(Residual() for _ in range(3))), (torch.ones(batch, 128),), torch.sum

def flat(batch=8):
    return nn.Linear(128, 1), (torch.ones(batch, 128),), torch.sum
"""
GPU = find_preset("rtx3060")
ROOM = Room(40_000_000, 8_519_680, 0)


def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entry: str = "", steps: int = 1) -> Subject:
    monkeypatch.chdir(tmp_path)
    Path("model.py").write_text(MODEL)
    loop = LoopOptions(accumulate=steps)
    words = f"model.py{entry}", None, None, "adamw", "in-backward"
    return open_subject(*words, loop, lambda _line: None, cached=False)


def loops_of(subject: Subject) -> Loops:
    return Loops(subject.estimates, GPU, subject.loop.steps)


@pytest.mark.parametrize("steps", [1, 2])
def test_the_largest_batch_is_the_last_that_the_simulator_lets_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    subject = opened(tmp_path, monkeypatch, steps=steps)
    loops = loops_of(subject)
    ways = {way.name: way for way in AtOnceSearch("adamw").run(loops, ROOM, None).ways}
    assert list(ways) == [AS_IT_IS, CHECKPOINTING, EIGHT_BIT]

    def needed(name: str, batch: int) -> int:
        graph = (loops.eight_bit if name == EIGHT_BIT else loops.ordinary)(batch).graph
        if name != CHECKPOINTING:
            return baseline(graph).peak
        found = solve("layer-checkpoint", Problem(graph, 2**40, NO_LINKS), bound_seconds=0.0)
        return figures_of(graph, found.schedule).least_budget

    for name, way in ways.items():
        assert way.batch is not None
        assert needed(name, way.batch) <= ROOM.unplanned
        assert needed(name, int((1 + 2 * TOLERANCE) * way.batch)) > ROOM.unplanned
    batches = [ways[name].batch or 0 for name in (AS_IT_IS, EIGHT_BIT, CHECKPOINTING)]
    assert batches == sorted(batches)


def test_the_whole_search_finds_the_same_batch_and_speed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizing = Sizing(opened(tmp_path, monkeypatch), [(GPU, ROOM)], solver="store-all", batches=[8, 64, 256])
    (at_once,), (result,) = sizing.at_once(), sizing.results()
    assert result.unplanned is not None
    assert (at_once.ways[0].batch, at_once.ways[0].samples_per_second) == (
        result.unplanned.batch,
        pytest.approx(result.rate(result.unplanned)),
    )


@pytest.mark.parametrize("given", [True, False], ids=["given", "searched"])
def test_what_fits_with_checkpoints_fits_if_the_solver_has_no_answer(
    given: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(*_arguments: object, **_options: object) -> None:
        raise NotFoundError("auto", 0, 0, None)

    subject = opened(tmp_path, monkeypatch)
    monkeypatch.setattr(question.registry, "solve", late)
    ways = {way.name: way.batch for way in AtOnceSearch("adamw").run(loops_of(subject), ROOM, None).ways}
    batch = ways[CHECKPOINTING]
    assert batch is not None
    assert batch > 1.2 * (ways[AS_IT_IS] or 0)
    (found,) = Sizing(subject, [(GPU, ROOM)], batches=[batch] if given else None).results()
    assert found.largest is not None
    assert found.largest.batch >= batch


def test_what_is_computed_for_one_gpu_is_known_to_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject, search = opened(tmp_path, monkeypatch), AtOnceSearch("adamw")
    for _time in range(2):  # a batch that was traced first may be on a line later
        first = search.run(loops_of(subject), ROOM, [8, 64, 256])
    monkeypatch.setattr(Outline, "peak", None)
    again = search.run(loops_of(subject), ROOM, [8, 64, 256])
    assert again.ways == first.ways


def test_a_model_without_layers_has_nothing_to_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loops = loops_of(opened(tmp_path, monkeypatch, ":flat"))
    ways = AtOnceSearch(None).run(loops, ROOM, [8]).ways
    assert [(way.name, way.batch) for way in ways] == [(AS_IT_IS, 8), (CHECKPOINTING, None)]


@pytest.mark.scripts
def test_adapters_are_as_of_a_command_with_lora(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subject = opened(tmp_path, monkeypatch)
    Path("model.py").write_text("raise ValueError('run a second time')")
    (at_once,) = Sizing(subject, [(GPU, ROOM)], batches=[8, 64, 8192]).at_once()
    Path("model.py").write_text(MODEL)
    words = "model.py", None, None, "adamw", "in-backward", LoopOptions(lora=ADAPTERS)
    adapted = open_subject(*words, print, cached=False)
    alone = AtOnceSearch("adamw").run(loops_of(adapted), ROOM, [8, 64, 8192])
    assert [way[1:] for way in at_once.ways[3:]] == [way[1:] for way in alone.ways[:2]]
    assert [way.name for way in at_once.ways[3:]] == [LORA, LORA_CHECKPOINTING]


def test_what_the_model_refuses_is_left_to_the_second_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model.py").write_text("def build(batch=1):\n    print('built')\n    raise ValueError('no')\n")
    subject = open_subject("model.py", None, None, "adamw", "in-backward", LoopOptions(), print, cached=False)
    search = AtOnceSearch("adamw")
    with pytest.MonkeyPatch.context() as patch:
        assert all(way.batch is None for way in search.run(loops_of(subject), ROOM, None).ways)
        patch.setattr(Estimates, "_trace", None)  # what was refused once is not traced once more
        assert all(way.batch is None for way in search.run(loops_of(subject), ROOM, None).ways)
    with pytest.raises(InputError, match="no"):
        next(Sizing(subject, [(GPU, ROOM)]).results())


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (10, "less than a minute"),
        (60, "some 1 minute"),
        (190, "some 3 minutes"),
        (5399, "some 90 minutes"),
        (7300, "some 2 hours"),
    ],
)
def test_a_time_to_come_in_words(seconds: float, words: str) -> None:
    assert minutes(seconds) == words


def test_the_gpus_that_come_first_are_known() -> None:
    assert set(ASKED_FIRST) <= presets().keys()


def test_the_kinds_of_quantised_weights_are_the_models() -> None:
    """The command names them without torch."""
    assert QUANTIZED == KINDS
