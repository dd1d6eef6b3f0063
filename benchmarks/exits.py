"""Commands that end two hundred times on a busy machine: with the right exit code, and a schedule that holds.

Protocol. `solve`, `pareto`, `bench` and `size` on transformer-6 and three other graphs (`size`: on an example
model), with time limits of 1, 2 and 6 s and without one, some of them ended by Ctrl-C or SIGTERM after a
random time, beside busy loops. Right is: 0, and `plan check` accepts the schedule, the table has its rows; 3
when the error says that time was too short; 130 and 143 after a signal, with a schedule that `plan check`
accepts when the command says that it wrote one; or death by the signal, which shells tell as the same code,
where it came while the command was still being imported. Everything else is wrong, above all 134 (abort) and
139 (segmentation fault). Exit code 1 if any is wrong.

    python benchmarks/exits.py [--exits 200] [--loops 4] [--parallel 1] [--seed 0] [--only solve,size]
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from time import monotonic

from memplan.graphs.files.files import save_graph
from memplan.instances import catalogue

PLAN = [sys.executable, "-c", "from memplan.cli.main import main; main()"]
GRAPHS = {"transformer-6": "50%", "bert-6": "50%", "unet": "75%", "segnet": "60%"}
"""Instances, and a budget at which bounds are under way when the limit comes."""

EXAMPLE = Path(__file__).parents[1] / "examples" / "mlp.py"
SHARES = {"solve": 11, "pareto": 3, "bench": 3, "size": 3}
"""The number of exits of each command among twenty."""

LONGEST_SECONDS = 600


@dataclass(frozen=True)
class Case:
    """One command to run. signal: the seconds after which it is sent, None for no signal."""

    command: str
    graph: str
    limit: float | None
    signal: tuple[int, float] | None

    @property
    def kind(self) -> str:
        limit = "no limit" if self.limit is None else "limit"
        return f"{self.command}, {limit}" if self.signal is None else f"{self.command}, signal"


@dataclass(frozen=True)
class Ended:
    """The end of one command. fault: empty if it is right."""

    case: Case
    code: int
    seconds: float
    fault: str


def cases(count: int, chance: Random, only: list[str]) -> list[Case]:
    commands = [name for name, share in SHARES.items() for _ in range(share) if name in only]
    made = list[Case]()
    for number in range(count):
        command = commands[number % len(commands)]
        graph = list(GRAPHS)[number // len(commands) % len(GRAPHS)]
        limit = (1.0, 2.0, 6.0, None)[(number + number // 4) % 4]
        ended = number % 5 == 4 and command in ("solve", "pareto")
        sent = (chance.choice([signal.SIGINT, signal.SIGTERM]), chance.uniform(3.0, 20.0))
        made.append(Case(command, graph, limit, sent if ended else None))
    return made


def words(case: Case, graphs: Path, folder: Path) -> list[str]:
    limit = [] if case.limit is None else ["--time-limit", str(case.limit)]
    gap = ["--gap", "5%" if case.limit is None else "0"]
    graph, budget = str(graphs / f"{case.graph}.json"), GRAPHS[case.graph]
    table = ["--bound-time", "1", "-o", str(folder / "table.csv")]
    match case.command:
        case "solve":
            out = ["--bound-time", "2", "-o", str(folder / "schedule.json")]
            return ["solve", graph, "--budget", budget, *gap, *limit, *out]
        case "pareto":
            return ["pareto", graph, "--budgets", f"90%,{budget}", *gap, *limit, *table]
        case "bench":
            limit = ["--time-limit", str(case.limit or 10.0)]
            return ["bench", graph, "--solvers", "auto", "--budgets", budget, *gap, *limit, *table]
        case _:
            limit = limit or ["--time-limit", "3"]
            return ["size", str(EXAMPLE), "--gpu", "rtx3060", "--budget", "15MB", "--batch", "16", *limit]


def ended(case: Case, graphs: Path, places: Path) -> Ended:
    with tempfile.TemporaryDirectory(dir=places) as name:
        folder, begin = Path(name), monotonic()
        command = [*PLAN, *words(case, graphs, folder)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        said, sent = "", False
        try:
            _out, said = process.communicate(timeout=case.signal[1] if case.signal else LONGEST_SECONDS)
        except subprocess.TimeoutExpired:
            if case.signal:
                process.send_signal(case.signal[0])
                sent = True
            try:
                _out, said = process.communicate(timeout=LONGEST_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
                return Ended(case, process.returncode, monotonic() - begin, "it does not end")
        seconds = monotonic() - begin
        return Ended(
            case, process.returncode, seconds, fault(case, process.returncode, sent, folder, graphs, said)
        )


def fault(case: Case, code: int, sent: bool, folder: Path, graphs: Path, said: str) -> str:
    wanted = {0} if case.signal is None or not sent else {0, 128 + case.signal[0]}
    last = said.strip().splitlines()[-1] if said.strip() else ""
    if code == 3 and "found no schedule" in said and "in its time" in said:
        return ""
    if code == 3 and case.command == "size":
        return ""  # no batch fits within the budget, by the schedules that were found in this time
    if (
        sent
        and case.signal
        and code == -case.signal[0]
        and not said
        and not (folder / "schedule.json").exists()
    ):
        return ""  # it was still importing
    if code not in wanted:
        return f"exit code {code}: {last}"
    schedule = folder / "schedule.json"
    if case.command == "solve" and (code == 0 or "best schedule so far" in said):
        check = ["check", str(schedule), "--graph", str(graphs / f"{case.graph}.json")]
        checked = subprocess.run([*PLAN, *check], capture_output=True, text=True, check=False)
        if checked.returncode:
            return f"plan check: exit code {checked.returncode}: {checked.stderr.strip()}"
    if (
        case.command in ("pareto", "bench")
        and code == 0
        and len((folder / "table.csv").read_text().split("\n")) < 3
    ):
        return "the table has no row"
    return ""


@contextmanager
def busy(loops: int) -> Iterator[None]:
    started = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(loops)]
    try:
        yield
    finally:
        for loop in started:
            loop.kill()
            loop.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--exits", type=int, default=200)
    parser.add_argument("--loops", type=int, default=4, help="busy loops beside them")
    parser.add_argument("--parallel", type=int, default=1, help="commands at a time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default=",".join(SHARES), help="commands, by comma")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no more after these")
    asked = parser.parse_args()
    begin = monotonic()
    with tempfile.TemporaryDirectory() as name, busy(asked.loops):
        graphs = Path(name)
        for graph in GRAPHS:
            save_graph(catalogue.entry(graph).graph(), graphs / f"{graph}.json")

        def one(case: Case) -> Ended | None:
            if monotonic() - begin > asked.seconds:
                return None
            found = ended(case, graphs, graphs)
            if found.fault:
                print(f"WRONG {case}: {found.fault}", flush=True)
            return found

        with ThreadPoolExecutor(asked.parallel) as pool:
            chosen = cases(asked.exits, Random(asked.seed), asked.only.split(","))
            done = [found for found in pool.map(one, chosen) if found]
    rows = defaultdict[str, list[Ended]](list)
    for found in done:
        rows[found.case.kind].append(found)
    print("exits  wrong  median s  most s  codes              what")
    for kind, those in sorted(rows.items()):
        wrong, codes = sum(bool(each.fault) for each in those), Counter(each.code for each in those)
        seconds = sorted(each.seconds for each in those)
        reported = ", ".join(f"{count}×{code}" for code, count in sorted(codes.items()))
        middle = seconds[len(seconds) // 2]
        print(f"{len(those):5}  {wrong:5}  {middle:8.1f}  {seconds[-1]:6.1f}  {reported:17}  {kind}")
    wrong = sum(bool(found.fault) for found in done)
    machine = f"load {os.getloadavg()[1]:.1f} on {os.cpu_count()} cores"
    print(f"{len(done)} exits, {wrong} wrong, {monotonic() - begin:.0f} s, {machine}")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
