"""Training in less memory, on a GPU: memplan beside others' ways, in one table.

    benchmarks/gpu/run                  # with CUDA: all CUDA tests, then all rows; 40 minutes
    benchmarks/gpu/run --simulated      # small models, no GPU: tries the command itself

Every model in every way at 60, 40, 20 and 10 % of the baseline's peak, AdamW included. It needs a clone,
`pip install -e .[dev,examples]` with CUDA's PyTorch, and for DeepSpeed's rows `deepspeed`. No weights are
downloaded: models are made from their configurations.

Ours is one process per model, each row of the others one of its own: what fails, or takes longer than its
limit, is a row that says so. A limit follows from the model's number of operations (models.py). Rows are
written to --output, with the suffix .jsonl, as they come, and a run with the same file goes on where it
stopped; failed rows are tried again. The most important rows come first. README.md has the recipe for a
machine without a package index.
"""

from __future__ import annotations

import argparse
import json
import os
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
ROOT = HERE.parents[1]
SHARES = (0.6, 0.4, 0.2, 0.1)
CUDA_TESTS = (
    *(str(path.relative_to(ROOT)) for path in sorted(ROOT.glob("tests/**/*_on_devices.py"))),
    *(f"tests/devices/measuring/test_{name}.py" for name in ("live_bytes", "measure", "this_machine")),
    "tests/steps/test_execute_transfers.py",
)
TEST_SECONDS = 480.0
START_SECONDS = 120.0
"""For a process to import PyTorch, and to make a model on the card."""
SIMULATED_SECONDS = 600.0
TRACE_SECONDS = 0.05
"""For each operation, to trace, measure and compare: three times what GPT-2 took on an H200's host."""
COMPILE_SECONDS = 0.1
"""For each operation, for `torch.compile`."""
SHARE_SECONDS = 0.02
"""For each operation and budget, to make a plan's code and run it, in addition to the solver's time."""

Row = dict[str, Any]


def processes(names: list[str], ways: list[str], shares: list[float]) -> list[Row]:
    """The most important first: ours with what all are compared with, the others."""
    return [
        *({"model": name, "way": "ours", "shares": shares} for name in names),
        *({"model": name, "way": "plain", "shares": [1.0]} for name in names),
        *(
            {"model": name, "way": way, "shares": [share]}
            for way in ways
            for share in shares
            for name in names
        ),
    ]


def key(row: Row) -> str:
    """Rows of another card, PyTorch, solver or time for it are others."""
    names = ("model", "way", "share", "simulated", "solver", "seconds", "place")
    return json.dumps([row[name] for name in names])


def limit_of(asked: Row) -> float:
    """Return the seconds that a process of rows may take."""
    if asked["simulated"]:  # on a machine that may have other work
        return SIMULATED_SECONDS
    operations = models.OPERATIONS[asked["model"]]
    if asked["way"] != "ours":
        return START_SECONDS + operations * (COMPILE_SECONDS if asked["way"] == "compile" else SHARE_SECONDS)
    each = asked["seconds"] + operations * SHARE_SECONDS
    return START_SECONDS + operations * TRACE_SECONDS + len(asked["shares"]) * each


def run_process(asked: Row, seconds: float) -> list[Row]:
    """The rows that a process writes before it ends or its time does; for those that are missing, why."""
    command = [sys.executable, str(HERE / "row.py"), json.dumps(asked)]
    try:
        # Segments that grow leave hardly any memory free between tensors; weights are made before a plan is.
        environment = {"PYTORCH_ALLOC_CONF": "expandable_segments:True", **os.environ}
        done = subprocess.run(command, capture_output=True, timeout=seconds, env=environment)
        last = (done.stderr.decode().strip().splitlines() or ["nothing on standard error"])[-1]
        written, note = done.stdout, f"exit {done.returncode}: {last[:150]}"
    except subprocess.TimeoutExpired as stopped:
        written, note = stopped.stdout or b"", f"stopped after {seconds:.0f} s"
    common = {name: value for name, value in asked.items() if name != "shares"}
    whole = [line for line in written.decode().splitlines(keepends=True) if line.endswith("\n")]
    found = [{**common, **json.loads(line)} for line in whole if line.startswith("{")]
    there = {(row["way"], row["share"]) for row in found}
    wanted = [(asked["way"], share) for share in asked["shares"]]
    wanted += [("profile", 1.0)] if asked["way"] == "ours" else []
    missing = [
        {**common, "way": way, "share": share, "failed": True, "note": note}
        for way, share in wanted
        if (way, share) not in there
    ]
    return [*found, *missing]


def run_all(options: argparse.Namespace, about: str, end: float) -> list[Row]:
    file: Path = options.output.with_suffix(".jsonl")
    found = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    done = {key(row): row for row in found if not row.get("failed")}
    wanted = processes(options.models.split(","), [*filter(None, options.ways.split(","))], options.shares)
    shared = {"simulated": options.simulated, "solver": options.solver, "seconds": options.seconds}
    shared |= {"place": about, "compare": options.compare, "folder": str(options.output.parent.resolve())}
    results: list[Row] = []
    for process in wanted:
        asked: Row = {**shared, **process, "baseline_peak": None}
        of_model = [{**asked, "way": "profile", "share": 1.0}] if asked["way"] == "ours" else []
        of_model += [{**asked, "share": share} for share in asked["shares"]]
        note = _left_out(asked, done, end)
        missing = [row for row in of_model if key(row) not in done]
        if missing and note is None:
            asked["shares"] = [row["share"] for row in missing if row["way"] == asked["way"]]
            for row in run_process(asked, min(end - monotonic(), limit_of(asked))):
                done[key(row)] = row
                with file.open("a") as lines:
                    lines.write(json.dumps(row) + "\n")
                print(json.dumps(row), flush=True)
        results += [done.get(key(row), {**row, "note": note}) for row in of_model]
    return results


def _left_out(asked: Row, done: dict[str, Row], end: float) -> str | None:
    """Why a process is not started; sets the peak that its shares are of."""
    if reason := contestants.refusal(asked["way"], on_cuda=not asked["simulated"]):
        return reason
    if end - monotonic() <= 0:
        return "not reached in the time"
    if asked["way"] not in ("ours", "plain"):
        asked["baseline_peak"] = done.get(key({**asked, "way": "profile", "share": 1.0}), {}).get("peak")
        if asked["baseline_peak"] is None:
            return "left out: the model was not profiled"
    return None


def surroundings(simulated: bool) -> str:
    """What figures hold for."""
    if simulated:
        place = "Simulated device, small models; times are this CPU's and say nothing about a GPU"
    else:
        ask = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
        try:
            said = subprocess.run(ask, capture_output=True, text=True).stdout.strip()
        except OSError:  # a container without it
            said = ""
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
    command = [sys.executable, "-m", "pytest", "-q", "-m", "cuda", *CUDA_TESTS]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, cwd=HERE.parents[1])
    except subprocess.TimeoutExpired:
        return f"CUDA tests: stopped after {seconds:.0f} s."
    lines = done.stdout.strip().splitlines() or ["no output"]
    if done.returncode not in (0, 1):
        raise SystemExit(f"the CUDA tests did not run: {lines[-1]}")
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
    parser.add_argument("--compare", action="store_true", help="each plan's results with eager PyTorch's")
    parser.add_argument("--no-tests", action="store_true")
    parser.add_argument("--output", type=Path, default=Path("gpu-table.md"))
    options = parser.parse_args()
    for given, known in ((options.models, models.LARGE), (options.ways, contestants.WAYS)):
        if unknown := set(given.split(",")).difference(known, [""]):
            parser.error(f"{', '.join(sorted(unknown))}: there are {', '.join(known)}")
    options.ways = options.ways or ""
    options.simulated |= not torch.cuda.is_available()
    end = monotonic() + 60 * options.minutes
    about = surroundings(options.simulated)
    tests = (
        ""
        if options.simulated or options.no_tests
        else cuda_tests(min(TEST_SECONDS, 60 * options.minutes / 4))
    )
    text = table(f"{about}. {datetime.now(UTC):%Y-%m-%d}. {tests}".strip(), run_all(options, about, end))
    options.output.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
