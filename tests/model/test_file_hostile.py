"""Model files whose code does what no model should: the command ends in one line, its result stays whole."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from memplan.cli.main import main
from memplan.graphs.files.files import load_graph

pytest.importorskip("torch")

BUILD = """
import os, sys, torch
def build():
    {}
    return torch.nn.Linear(4, 4), (torch.ones(2, 4),), torch.sum
"""

FAULTS = {
    "os._exit(0)": "build() fails: SystemExit: 0",
    "sys.exit('bye')": "build() fails: SystemExit: bye",
    "raise type('Stop', (BaseException,), {})('now')": "the model's code raises Stop: now",
}


@pytest.mark.parametrize("code", FAULTS)
def test_a_model_that_ends_the_process_is_refused(
    code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("m.py").write_text(BUILD.format(code))
    before = os._exit
    result = CliRunner().invoke(main, ["profile", "m.py", "-o", "g.json"])
    assert os._exit is before
    assert (result.exit_code, result.stdout) == (2, "")
    assert FAULTS[code] in result.stderr
    assert not Path("g.json").exists()


@pytest.mark.scripts
def test_what_a_model_writes_and_where_it_goes_changes_no_result(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    code = "os.write(1, b'noise'); os.system('echo noise'); print('noise'); os.chdir('elsewhere')"
    (tmp_path / "m.py").write_text(BUILD.format(code))
    words = ["profile", "m.py", "-o", "g.json", "--json"]
    call = [sys.executable, "-c", "from memplan.cli.main import main; main()", *words]
    done = subprocess.run(call, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["graph"] == "g.json"
    assert done.stderr.count("noise") >= 3
    assert load_graph(tmp_path / "g.json").operations
