"""`plan train` killed outright at any moment, each time resumed, for tests and benchmarks/kills.py."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from random import Random
from typing import NamedTuple

from memplan.cli.main import main

STEPS = 20
MODEL = """
import random, numpy, torch
from torch import nn
def build():
    torch.manual_seed(0), random.seed(0), numpy.random.seed(0)
    inner = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2))
    model = nn.Sequential(nn.Linear(4, 16), inner, nn.Linear(16, 3))
    return model, (torch.randn(8, 4),), nn.functional.cross_entropy, torch.zeros(8, dtype=torch.long)
def data():
    x = torch.randn(40, 4, generator=torch.Generator().manual_seed(5))
    order = torch.randperm(40).tolist()
    for start in range(0, 40, 8):
        part = order[start : start + 8]
        noise = random.random() + numpy.random.rand()
        yield x[part] + noise, (x[part].sum(1) > 0).long()
"""


class Ended(NamedTuple):
    """losses: of all iterations. resumed: how many were there when the last process began. kills: of
    processes that were at work."""

    losses: list[float]
    resumed: int
    kills: int


class Killed:
    """A folder with a model, its graph and a schedule that updates the weights. Processes are forks of this
    one, which has imported all there is: they train at once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "m.py").write_text(MODEL)
        self.plan("profile", "m.py", "--optimizer", "adamw", "--lr", "0.01", "-o", "g.json")
        self.plan("solve", "g.json", "--budget", "100%", "--solver", "store-all", "-o", "s.json")

    def train(self, name: str, chance: Random, kills: int) -> Ended:
        """Until it ends, after so many kills: each at a random moment of its own, mostly near a save."""
        words = ("train", "s.json", "--graph", "g.json", "--model", "m.py", "--steps", f"{STEPS}", "--json")
        words = (*words, "--checkpoint", name, "--save-every", "1")
        done = 0
        while done < kills and self._saved(name) <= STEPS:
            process = self._start(words)
            most = self._saved(name) + chance.randrange(1, 3 + STEPS // (1 + kills))
            while (ended := os.waitpid(process, os.WNOHANG)) == (0, 0) and self._saved(name) < most:
                time.sleep(0.002)
            if ended == (0, 0):
                time.sleep(chance.uniform(0.0, 0.02))
                os.kill(process, signal.SIGKILL)
                done += os.WIFSIGNALED(os.waitpid(process, 0)[1])
        found = json.loads(self.plan(*words))
        left = sorted(path.name for path in (self.folder / name).iterdir())
        assert len(left) == 1, left
        return Ended(found["losses"], found["resumed"], done)

    def plan(self, *words: str) -> str:
        """What the command says; it must succeed."""
        _pid, status = os.waitpid(self._start(words), 0)
        assert status == 0, (self.folder / "said").read_text()
        return (self.folder / "out").read_text()

    def _saved(self, name: str) -> int:
        place = self.folder / name
        names = os.listdir(place) if place.exists() else []
        return max((int(each) for each in names if each.isdecimal()), default=0)

    def _start(self, words: tuple[str, ...]) -> int:
        pid = os.fork()
        if pid:
            return pid
        code: object = 1
        try:
            os.chdir(self.folder)
            sys.stdout, sys.stderr = open("out", "w"), open("said", "w")  # noqa: SIM115
            main(list(words))
        except SystemExit as leaving:
            code = leaving.code
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code if isinstance(code, int) else 0)
        return 0
