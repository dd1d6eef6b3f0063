"""Which of the results is the batch to train with, and what is said of it."""

from __future__ import annotations

from dataclasses import replace

from memplan.graphs.generators import chain
from memplan.graphs.machines.presets import find_preset
from memplan.model.file import ModelFile
from memplan.planner.baseline import baseline
from memplan.planner.simulator.simulate import Figures
from memplan.profiling.profile.estimates import Estimates
from memplan.sizing.answer import answer_of
from memplan.sizing.question import Room
from memplan.sizing.result import SizeResult
from memplan.sizing.sizing import Sizes
from memplan.sizing.subject import Subject
from memplan.sizing.trial import BatchTrial

ANY, ROOM = find_preset("rtx3060"), Room(100, 0, 0)


def test_the_batch_to_train_with_is_the_smallest_that_is_nearly_the_fastest() -> None:
    """The largest that fits may be far slower: it moves or makes again what the others keep."""

    def tried(batch: int, seconds: float | None) -> BatchTrial:
        figures = baseline(chain(2))
        there = None if seconds is None else replace(figures, time=seconds)
        return BatchTrial(batch, 100, 1, lambda: (figures, 0.0), figures=there)

    found = SizeResult(
        ANY,
        ROOM,
        ANY.machine,
        trials=[tried(1, 1.0), tried(2, 1.0), tried(4, 2.0), tried(8, 12.0), tried(16, None)],
    )
    assert found.fastest is not None
    assert found.largest is not None
    assert (found.fastest.batch, found.largest.batch) == (2, 8)
    assert found.advised is found.fastest
    found.trials[0] = tried(1, 0.52)
    assert found.advised is found.trials[0]
    subject = Subject("any", None, "none", Estimates(ModelFile("any.py", "build", dict), None, print))
    answer = answer_of(Sizes(subject, [found], several=False))
    assert ("most samples/s", "batch 2: 2 samples/s: within 5 % of it is enough") in answer.summary
    assert answer.line.startswith("yes: batch 1 fits")
    marks = [row[-1].partition("; ")[2] for row in answer.table.table.rows]
    assert marks[:3] == ["within 5 % of the most samples/s: train with this", "most samples/s", ""]
    found.trials[0] = tried(1, 0.53)
    assert found.advised is found.fastest
    assert SizeResult(ANY, ROOM, ANY.machine, trials=[tried(1, None)]).fastest is None


def test_so_it_is_beside_a_batch_that_fits() -> None:
    def trial(batch: int, figures: Figures | None) -> BatchTrial:
        return BatchTrial(batch, 10, 1, lambda: (Figures(1.0, 20, 20, 0, 0), 0.0), figures=figures)

    fits, moves = Figures(1.0, 8, 8, 0, 0), Figures(2.0, 9, 9, 7, 0, 6, 5)
    found = SizeResult(
        ANY, ROOM, ANY.machine, trials=[trial(1, fits), trial(2, None)], pinning=trial(2, moves), pinned=4
    )
    line = "batch 2 would fit but for host.pinned, 4 B: its schedule pins 5 B"
    subject = Subject("any", None, "none", Estimates(ModelFile("any.py", "build", dict), None, print))
    assert ("pinned memory", line) in answer_of(Sizes(subject, [found], several=False)).summary
    found.pinning = None
    assert "pinned memory" not in dict(answer_of(Sizes(subject, [found], several=False)).summary)
