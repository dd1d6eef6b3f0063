"""The verifier alone: its replay against the simulator, its bounds against exhaustive searches.

More cases: benchmarks/certificates.py.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest
from certified import REFUSALS, certified, changed, proven, replayed
from memplan.graphs.files.write import graph_to_document
from memplan.graphs.generators import chain
from memplan.planner.bounds import minimum_memory, minimum_memory_once
from memplan.planner.certificates import verify
from training_graphs import training

SOURCE = Path(verify.__file__)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("batch", range(6))
def test_the_replay_is_the_simulators(batch: int) -> None:
    for seed in range(150 * batch, 150 * (batch + 1)):
        assert (fault := replayed(seed)) is None, f"{seed}: {fault}"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("batch", range(4))
def test_no_proof_is_above_an_exhaustive_optimum(batch: int) -> None:
    """Nor is one with a number changed, if it is accepted."""
    positive = accepted = 0
    for number in range(60 * batch, 60 * (batch + 1)):
        random = Random(f"proof {number}")
        if (case := proven(random)) is None:
            continue
        assert (fault := case.fault()) is None, f"{number}: {fault}"
        positive += 1
        for _change in range(5):
            other = case._replace(bound=changed(case.bound, random))
            try:
                assert (fault := other.fault()) is None, f"{number}: {fault}"
                accepted += 1
            except REFUSALS:
                continue
    assert positive > 3
    assert accepted > 3


@pytest.mark.parametrize("seed", range(6))
def test_minimum_memory_is_counted_alike(seed: int) -> None:
    graph = training(4, seed, skip=0.3)
    row = verify.Graph(json.loads(json.dumps(graph_to_document(graph))))
    single = [once or later for once, later in zip(row.once, row.backward, strict=True)]
    assert verify.least_bytes(row, verify.Machine({})) == minimum_memory(graph)
    assert verify.least_bytes(row, verify.Machine({}), single) == minimum_memory_once(graph)


def test_it_imports_the_standard_library_alone() -> None:
    for node in ast.walk(ast.parse(SOURCE.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        for name in names:
            assert name.partition(".")[0] in {*sys.stdlib_module_names, "yaml"}


def alone(folder: Path, *documents: Any) -> subprocess.CompletedProcess[str]:
    """Run the file in a Python that knows no installed package."""
    names = ("schedule.json", "certificate.json", "graph.json")
    for name, document in zip(names, documents, strict=False):
        (folder / name).write_text(json.dumps(document))
    command = [sys.executable, "-I", "-S", str(SOURCE), *names[: len(documents)]]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_it_runs_alone(tmp_path: Path) -> None:
    case = certified(chain(6, seed=0), 10**9, "store-all")
    assert case is not None
    documents = case.schedule, case.certificate, case.document
    accepted = alone(tmp_path, *documents)
    assert accepted.returncode == 0, accepted.stderr
    assert "lower bound (any order)" in accepted.stdout
    assert "proven" in accepted.stdout
    for changed_schedule, code in (
        ({**case.schedule, "graph": {"name": "chain", "sha256": "0"}}, 6),
        ({**case.schedule, "steps": case.schedule["steps"][:-1]}, 6),
        ({key: value for key, value in case.schedule.items() if key != "graph"}, 2),
    ):
        refused = alone(tmp_path, changed_schedule, *documents[1:])
        assert refused.returncode == code, refused.stderr
        assert len(refused.stderr.splitlines()) == 1
        assert refused.stderr.startswith("refused: ")
    assert alone(tmp_path, *documents[:1]).returncode == 1
    assert alone(tmp_path, *documents[:2]).returncode == 2
    (tmp_path / "graph.json").write_text("{")
    assert alone(tmp_path, *documents[:2], {"format": "plan-graph/2"}).returncode == 2


@pytest.mark.parametrize(
    ("document", "fault"),
    [
        ({"format": "plan-graph/2"}, "'plan-graph/2' is not covered"),
        ({"format": "plan-graph/1"}, "a field is missing"),
        ([], "a field is missing"),
    ],
)
def test_what_is_not_covered_is_named(document: Any, fault: str) -> None:
    with pytest.raises(verify.DocumentError, match=fault):
        verify.verify({}, {}, document)


def test_an_index_below_zero_is_no_second_tensor() -> None:
    """In Python a list has its last entry at −1 too: as a tensor of its own it would be paid for twice."""
    for number in range(400):
        case = proven(Random(f"proof {number}"))
        if case is None or not any(moment["needs"] for moment in case.bound["proof"]["moments"]):
            continue
        moment = next(moment for moment in case.bound["proof"]["moments"] if moment["needs"])
        count = len(case.graph.tensors)
        moment["needs"] = [[x - count, p, amount] for x, p, amount in moment["needs"]]
        with pytest.raises(verify.ClaimError):
            case.fault()
        return
    raise AssertionError("no case has a need")
