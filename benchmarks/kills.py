"""Commands killed at random moments by SIGKILL, SIGTERM and SIGINT: what is wrong then, and what is left.

Each command is run once undisturbed, then killed at any time within what it took, or within --within
seconds where that is given. What must hold is in killing.py. Exit code 1 where there was a fault.
With --training alone `plan train` is killed by SIGKILL, and must go on with the same losses each time.

    python benchmarks/kills.py [--kills N] [--seed S] [--within SECONDS] [--only COMMAND,COMMAND | --training]
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from collections import Counter
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from killed_training import Killed
from killing import ALL, SIGNALS, Range, moment

PREPARE = (
    ("profile", "m.py", "-o", "m.json"),
    ("solve", "m.json", "--budget", "100%", "--solver", "store-all", "-o", "m-s.json"),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--within", type=float)
    parser.add_argument("--only", default=",".join(ALL))
    parser.add_argument("--training", action="store_true")
    asked = parser.parse_args()
    if asked.training:
        return training(asked.kills, Random(asked.seed))
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background, by all children
    names: list[str] = asked.only.split(",")
    chance = Random(asked.seed)
    counts: Counter[str] = Counter()
    codes: Counter[tuple[str, int]] = Counter()
    faults = 0
    with tempfile.TemporaryDirectory(prefix="kills-") as folder, Range(Path(folder) / "range") as place:
        for words in PREPARE:
            if {"run", "profile"} & set(names) and place.start(words).wait():
                sys.exit(f"{' '.join(words)}: {(place.folder / 'said').read_text()}")
        within: float | None = asked.within
        takes = {name: within or place.seconds(ALL[name]) for name in names}
        for name, seconds in takes.items():
            print(f"{name}: {seconds:.1f} s", flush=True)
        for number in range(asked.kills):
            name, sent = names[number % len(names)], chance.choice(SIGNALS)
            at = moment(chance, takes[name])
            killed = place.kill(ALL[name], sent, at)
            counts["over before" if killed.over else sent] += 1
            codes[sent, killed.code] += 1
            for fault in killed.faults:
                faults += 1
                print(f"{number}: {name}, {sent} after {at:.2f} s: {fault}", flush=True)
    print(", ".join(f"{sent}: {count}" for sent, count in sorted(counts.items())))
    print(", ".join(f"{sent} {code}: {count}" for (sent, code), count in sorted(codes.items())))
    print(f"{asked.kills} kills, {faults} faults")
    return 1 if faults else 0


def training(kills: int, chance: Random) -> int:
    faults = runs = done = 0
    with tempfile.TemporaryDirectory(prefix="kills-") as folder:
        place = Killed(Path(folder))
        losses = place.train("undisturbed", chance, 0).losses
        while done < kills:
            runs += 1
            ended = place.train(f"run-{runs}", chance, chance.randint(1, 6))
            done += ended.kills
            if ended.losses != losses:
                faults += 1
                print(f"run {runs}: {ended.losses}, undisturbed {losses}", flush=True)
    print(f"{runs} runs of {len(losses)} iterations, {done} kills, {faults} with other losses")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
