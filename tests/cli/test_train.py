"""`plan train`: trains as a loop by hand does, is saved, and goes on from any kill bit by bit."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from killed_training import MODEL, STEPS, Killed
from memplan.cli.main import main
from memplan.model.file import load_model_file
from memplan.model.iteration import Labelled
from memplan.steps.execute import PlannedStep
from memplan.training.batches import Batches
from memplan.training.checkpoints.tensor_file import open_tensors


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Killed:
    return Killed(tmp_path_factory.mktemp("training"))


def by_hand(model: Path, steps: int) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Losses and weights of plain PyTorch."""
    file = load_model_file(str(model))
    module, inputs, loss_fn, *_others = file.build()
    optimizer = torch.optim.AdamW(module.parameters(), 0.01, fused=True)
    losses: list[float] = []
    batches = Batches(lambda: file.epoch(inputs))
    for _step in range(steps):
        batch = next(batches)
        assert isinstance(batch, Labelled)
        assert loss_fn is not None
        loss = loss_fn(module(*batch.inputs), batch.targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, module.state_dict()


def run(place: Killed, *words: str) -> Result:
    graph, schedule = str(place.folder / "g.json"), str(place.folder / "s.json")
    return CliRunner().invoke(main, ["train", schedule, "--graph", graph, *words])


@pytest.mark.scripts
@pytest.mark.skipif(sys.platform != "linux", reason="sends POSIX signals")
def test_whoever_is_killed_goes_on_bit_by_bit(place: Killed) -> None:
    losses, _weights = by_hand(place.folder / "m.py", STEPS)
    ended = place.train("killed", Random(1), kills=3)
    assert ended.kills
    assert 0 < ended.resumed < STEPS
    assert ended.losses == losses


@pytest.mark.scripts
def test_a_run_is_lengthened(place: Killed, tmp_path: Path) -> None:
    losses, weights = by_hand(place.folder / "m.py", 13)
    model, folder = str(place.folder / "m.py"), str(tmp_path / "c")
    for steps, before in ((7, 0), (13, 7), (13, 13), (5, 13)):
        ended = run(
            place,
            "--model",
            model,
            "--json",
            "--steps",
            str(steps),
            "--checkpoint",
            folder,
            "--save-every",
            "4",
        )
        assert ended.exit_code == 0, ended.stderr
        found = json.loads(ended.stdout)
        assert found["resumed"] == before
        assert found["losses"] == losses[: max(steps, before)]
    ended = run(place, "--model", model, "--steps", "14", "--checkpoint", folder)
    assert "trained       14 iterations, 13 of them before" in ended.stdout
    assert "an iteration" in ended.stdout
    last = max((tmp_path / "c").iterdir())
    assert open_tensors(last / "model.safetensors").keys() == weights.keys()


REFUSED = {
    "yield torch.ones(3, 4), torch.zeros(3, dtype=torch.long)": (6, r"\[3, 4\].*the plan is for"),
    "yield torch.ones(8, 4)": (2, "pairs of inputs and targets"),
    "return []": (2, "no batch"),
    "raise OSError('no such shard')": (2, r"m.py:\d+: data\(\) fails: OSError: no such shard"),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("line", REFUSED)
def test_batches_that_are_no_batches_are_refused(line: str, place: Killed, tmp_path: Path) -> None:
    model = tmp_path / "m.py"
    model.write_text(MODEL.partition("def data")[0] + f"def data():\n    {line}\n")
    ended = run(place, "--model", str(model), "--steps", "2", "--checkpoint", str(tmp_path / "c"))
    code, words = REFUSED[line]
    assert ended.exit_code == code, ended.stderr
    assert len(ended.stderr.splitlines()) == 1
    assert re.search(words, ended.stderr), ended.stderr


def test_without_data_it_trains_on_the_example_and_ctrl_c_names_the_checkpoint(
    place: Killed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, calls = tmp_path / "m.py", list[None]()
    model.write_text((place.folder / "m.py").read_text().replace("def data(", "def no_data("))
    iterate = PlannedStep.iterate

    def interrupted(*given: Any) -> Any:
        calls.append(None)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return iterate(*given)

    monkeypatch.setattr(PlannedStep, "iterate", interrupted)
    words = ["--model", str(model), "--steps", "9", "--save-every", "2", "--checkpoint", str(tmp_path / "c")]
    ended = run(place, *words)
    assert ended.exit_code == 130
    assert f"{model} has no data(): each iteration trains on the example batch" in ended.stderr
    assert f"{tmp_path / 'c'} has the checkpoint of iteration 2; the same command goes on" in ended.stderr
    assert run(place, *words, "--json").exit_code == 0


def test_bad_usage(place: Killed, tmp_path: Path) -> None:
    model = str(place.folder / "m.py")
    for words, missing in ((["--steps", "3"], "--checkpoint"), (["--checkpoint", "c"], "--steps")):
        ended = run(place, "--model", model, *words)
        assert ended.exit_code == 2
        assert f"Missing option '{missing}'" in ended.stderr
    baseline = tmp_path / "plain.json"
    graph = tmp_path / "graph.json"
    for call in (
        ["profile", model, "-o", str(graph)],
        ["solve", str(graph), "--budget", "100%", "--solver", "store-all", "-o", str(baseline)],
    ):
        assert CliRunner().invoke(main, call).exit_code == 0
    words = [
        "train",
        str(baseline),
        "--graph",
        str(graph),
        "--model",
        model,
        "--steps",
        "2",
        "--checkpoint",
        "c",
    ]
    ended = CliRunner().invoke(main, words)
    assert ended.exit_code == 2
    assert "updates no weights: profile the model with --optimizer" in ended.stderr


@pytest.mark.parametrize(
    "words", [["--steps", "3"], ["--steps=3"], ["--checkpoint", "c"], ["--save-every", "2"]]
)
def test_run_names_the_command_that_trains(words: list[str]) -> None:
    ended = CliRunner().invoke(main, ["run", "s.json", "--model", "m.py", *words])
    assert ended.exit_code == 2
    assert "training is another command: plan train SCHEDULE --model MODEL.py --steps N" in ended.stderr


def test_an_epoch_is_found_again_in_the_middle() -> None:
    """Whatever others draw in between, and over ends of epochs."""

    def epoch() -> Iterator[Any]:
        yield from torch.randperm(5).tolist()

    torch.manual_seed(3)
    whole = Batches(epoch)
    batches: list[Any] = [next(whole) for _batch in range(14)]
    assert sorted(batches[:5]) == list(range(5))
    assert batches[:5] != batches[5:10]
    for taken in range(14):
        torch.manual_seed(3)
        one = Batches(epoch)
        assert [next(one) for _batch in range(taken)] == batches[:taken]
        state = one.state_dict()
        torch.manual_seed(99)
        other = Batches(epoch)
        other.load_state_dict(state)
        found: list[Any] = []
        for _batch in range(taken, 14):
            torch.rand(3)
            found.append(next(other))
        assert found == batches[taken:]
