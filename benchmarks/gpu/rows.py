"""Training in less memory, on a GPU: memplan beside others' ways, in one table.

    benchmarks/gpu/run                  # with CUDA: all CUDA tests, then all rows; 40 minutes
    benchmarks/gpu/run --simulated      # small models, no GPU: tries the command itself

Every model in every way at 60, 40, 20 and 10 % of plain PyTorch's peak, AdamW included. It needs a clone,
`pip install -e .[dev,examples]` with CUDA's PyTorch, and for DeepSpeed's rows `deepspeed`. No weights are
downloaded: models are made from their configurations.

Each row is a process of its own: one that fails, or takes longer than its part of the time that is left, is a
row that says so. Rows are written to --output, with the suffix .jsonl, as they come, and a run with the same
file goes on where it stopped; failed rows are tried again. The most important rows come first.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import monotonic
from typing import Any

import contestants
import models
import torch
from table import table

HERE = Path(__file__).parent
SHARES = (0.6, 0.4, 0.2, 0.1)
TEST_SECONDS = 480.0
LEAST_SECONDS = 120.0
"""What every row may take, if so much is left."""

Row = dict[str, Any]


def rows(names: list[str], ways: list[str], shares: list[float]) -> list[Row]:
    """The most important first: what all are compared with, ours, the others."""
    order = [
        *((name, way, 1.0) for way in ("profile", "plain") for name in names),
        *((name, "ours", share) for share in shares for name in names),
        *((name, way, share) for way in filter(None, ways) for share in shares for name in names),
    ]
    return [{"model": name, "way": way, "share": share} for name, way, share in order]


def key(row: Row) -> str:
    """Rows of another card, PyTorch, solver or time for it are others."""
    names = ("model", "way", "share", "simulated", "solver", "seconds", "place")
    return json.dumps([row[name] for name in names])


def run_row(asked: Row, seconds: float) -> Row:
    command = [sys.executable, str(HERE / "row.py"), json.dumps(asked)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return {**asked, "failed": True, "note": f"stopped after {seconds:.0f} s"}
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["nothing on standard error"])[-1]
        return {**asked, "failed": True, "note": f"exit {done.returncode}: {last[:150]}"}
    return {**asked, **json.loads(done.stdout.strip().splitlines()[-1])}


def run_all(options: argparse.Namespace, about: str, end: float) -> list[Row]:
    """Of a row that waits for another, a model's profile, and that failed: what it says."""
    file: Path = options.output.with_suffix(".jsonl")
    found = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    done = {key(row): row for row in found if not row.get("failed")}
    wanted = rows(options.models.split(","), options.ways.split(","), options.shares)
    shared = {"simulated": options.simulated, "solver": options.solver, "seconds": options.seconds}
    shared |= {"place": about, "budget": None}
    shared["folder"] = str(options.output.parent.resolve())
    results: list[Row] = []
    for number, row in enumerate(wanted):
        asked = {**shared, **row}
        if key(asked) not in done:
            if reason := contestants.refusal(row["way"], on_cuda=not options.simulated):
                results.append({**asked, "note": reason})
                continue
            left = end - monotonic()
            plain = done.get(key({**asked, "way": "profile", "share": 1.0}), {}).get("peak")
            if left <= 0:
                results.append({**asked, "note": "not reached in the time"})
                continue
            if row["way"] not in ("profile", "plain"):
                if plain is None:
                    results.append({**asked, "note": "left out: the model was not profiled"})
                    continue
                asked["budget"] = int(row["share"] * plain)
            limit = min(left, max(LEAST_SECONDS, 3 * left / (len(wanted) - number)))
            result = run_row(asked, limit)
            done[key(asked)] = result
            with file.open("a") as lines:
                lines.write(json.dumps(result) + "\n")
            print(json.dumps(result), flush=True)
        results.append(done[key(asked)])
    return results


def surroundings(simulated: bool) -> str:
    """What figures hold for."""
    if simulated:
        place = "Simulated device, small models; times are this CPU's and say nothing about a GPU"
    else:
        ask = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
        said = subprocess.run(ask, capture_output=True, text=True).stdout.strip()
        place = f"Measured on {said or torch.cuda.get_device_name()}, CUDA {torch.version.cuda}"
    names = {"PyTorch": torch.__version__, "Python": platform.python_version()}
    for package in ("transformers", "deepspeed"):
        try:
            names[package] = version(package)
        except PackageNotFoundError:
            continue
    return f"{place}. {', '.join(f'{name} {number}' for name, number in names.items())}"


def cuda_tests(seconds: float) -> str:
    """The lines with failures, and the last, of the tests that need a CUDA device."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "cuda", "tests"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, cwd=HERE.parents[1])
    except subprocess.TimeoutExpired:
        return f"CUDA tests: stopped after {seconds:.0f} s."
    lines = done.stdout.strip().splitlines() or ["no output"]
    return "; ".join(["CUDA tests: " + lines[-1], *(line for line in lines if line.startswith("FAILED"))])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--simulated", action="store_true", help="also where there is a GPU")
    parser.add_argument("--minutes", type=float, default=40, help="for all, the tests too")
    parser.add_argument("--seconds", type=float, default=20, help="for the solver, each row of ours")
    parser.add_argument("--solver", default="auto", help="of ours; any of `plan solve`")
    parser.add_argument("--models", default=",".join(models.LARGE), help="of these, with commas between")
    parser.add_argument("--ways", default=",".join(contestants.WAYS), help="others' ways, alike")
    parser.add_argument("--shares", type=lambda text: [float(x) for x in text.split(",")], default=SHARES)
    parser.add_argument("--output", type=Path, default=Path("gpu-table.md"))
    options = parser.parse_args()
    for given, known in ((options.models, models.LARGE), (options.ways, contestants.WAYS)):
        if unknown := set(given.split(",")).difference(known, [""]):
            parser.error(f"{', '.join(sorted(unknown))}: there are {', '.join(known)}")
    options.ways = options.ways or ""
    options.simulated |= not torch.cuda.is_available()
    end = monotonic() + 60 * options.minutes
    about = surroundings(options.simulated)
    tests = "" if options.simulated else cuda_tests(min(TEST_SECONDS, 60 * options.minutes / 4))
    text = table(f"{about}. {datetime.now(UTC):%Y-%m-%d}. {tests}".strip(), run_all(options, about, end))
    options.output.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
