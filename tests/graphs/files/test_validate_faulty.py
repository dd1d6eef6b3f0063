"""The files in tests/faulty/, each named by its fault: one line that names file and fault, exit code 2, soon.

Each gets its line here. Graphs go to `plan partition` and `plan solve`, machines to `plan solve`, schedules
(of sound.json) to `plan check` and `plan show`.
"""

from __future__ import annotations

from pathlib import Path
from time import process_time

import pytest
from click.testing import CliRunner
from memplan.cli.main import main

FOLDER = Path(__file__).parents[2] / "faulty"
SOUND = FOLDER / "sound.json"

LONGEST_LINE = 2000
PATIENCE_SECONDS = 5.0

LINES = {
    "graphs/alias-of-itself.yaml": "line 1: the alias 'a' stands within what it stands for",
    "graphs/bare-number-as-name.yaml": "field 'name' must be a non-empty text, not 7",
    "graphs/boolean-size.json": "tensors[0] (x): field 'bytes': True is not a number of bytes",
    "graphs/changes-before-written.yaml": "operations[0] (F0): changes é\\n before it could be written",
    "graphs/cut-off.json": "line 1: not JSON",
    "graphs/cut-off.json.gz": "not a whole gzip file",
    "graphs/empty-name.json": "tensors[0] (): field 'name' must be a non-empty text",
    "graphs/field-twice.json": "field 'format' stands twice",
    "graphs/half-a-character-in-a-tensor.json": "half a character (a lone surrogate)",
    "graphs/half-a-character.json": "half a character (a lone surrogate)",
    "graphs/integer-above-any-float.json": "0 is more bytes than any machine has",
    "graphs/list-as-graph.json": "a graph must be a mapping of fields",
    "graphs/long-text-as-time.json": "operations[1] (G): field 'time' must be a number of seconds, not 'aaa",
    "graphs/merge-of-mappings.yaml": "format is None, not 'plan-graph/1'",
    "graphs/mode-writes-more.json": "operations[1] (G): mode 'm' writes a too",
    "graphs/negative-time.json": "operations[0] (F): field 'time' must be finite and not negative, not -1",
    "graphs/not-a-number.json": "NaN is not a number that JSON has",
    "graphs/not-text.json": "not UTF-8 text (byte 24)",
    "graphs/null-size.json": "tensors[0] (x): field 'bytes': None is not a number of bytes",
    "graphs/python-object.yaml": "line 1: the tag tag:yaml.org,2002:python/object/apply:os.system is not",
    "graphs/second-loss.json": "operations[1] (G): a second loss operation",
    "graphs/size-beyond-any-machine.json": "tensors[0] (x): field 'bytes': 1e+300 is more bytes than any",
    "graphs/sizes-beyond-64-bits.json": "the tensors have more bytes than any machine: more than 2 EiB",
    "graphs/tag-bool.yaml": "line 3: 'foo' does not fit its tag",
    "graphs/tag-int-empty.yaml": "line 3: '' does not fit its tag",
    "graphs/tag-int-sign.yaml": "line 3: '+' does not fit its tag",
    "graphs/tag-map.yaml": "line 3: the tag tag:yaml.org,2002:map is not that of a list",
    "graphs/tag-timestamp.yaml": "line 3: the tag tag:yaml.org,2002:timestamp is not one of YAML's core",
    "graphs/time-above-any-float.json": "operations[0] (F): field 'time' must be finite and not negative",
    "graphs/times-beyond-floats.json": "the operations take more than 1e+18 s",
    "graphs/unknown-link.json": "unknown field 'd2d': is it 'h2d'?",
    "graphs/unmade-result.json": "results: b is written by no operation",
    "graphs/writes-an-input.json": "operations[1] (G): writes x, of kind input",
    "machines/capacity-as-list.json": "field 'device.capacity': [1] is not a number of bytes",
    "machines/negative-rate.json": "field 'd2h': -1 is not",
    "machines/no-machine.yaml": "a machine must be a mapping of fields",
    "machines/unknown-memory.json": "unknown field 'tape'",
    "machines/zero-rate.json": "field 'd2h': 0 is not a rate: it must be above 0",
    "schedules/budget-below-nothing.json": "field 'budget': -5 is not",
    "schedules/list-as-verb.json": "steps[0] ([['compute'], 'F']): a step is a verb",
    "schedules/number-as-step.json": "steps[0] (['compute', 0]): a step is a verb",
    "schedules/predicted-as-list.json": "predicted must be a mapping of fields",
    "schedules/steps-as-mapping.json": "steps must be a list",
    "schedules/unhashable-initial.json": "field 'initial.host' names the unknown tensor ['w']",
    "schedules/unknown-operation.json": "steps[0] (['compute', 'H']): the graph has no operation 'H'",
}

COMMANDS = {
    "graphs": (
        ["partition", "{}"],
        ["solve", "{}", "--budget", "50%", "--solver", "store-all", "--bound-time", "0"],
    ),
    "machines": (["solve", str(SOUND), "--solver", "store-all", "--bound-time", "0", "--machine", "{}"],),
    "schedules": (["check", "{}", "--graph", str(SOUND)], ["show", "{}", "--graph", str(SOUND)]),
}


def test_every_file_has_its_line() -> None:
    files = {path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*") if path.is_file()}
    assert files == {*LINES, SOUND.name}


@pytest.mark.parametrize("name", LINES)
def test_a_faulty_file_is_refused_in_one_line(name: str) -> None:
    path = FOLDER / name
    for words in COMMANDS[name.split("/")[0]]:
        start = process_time()
        result = CliRunner().invoke(main, [word.format(path) for word in words])
        assert result.stderr.startswith(f"plan: error: {path}: "), result.stderr
        assert LINES[name] in result.stderr
        assert len(result.stderr.splitlines()) == 1
        assert len(result.stderr) < LONGEST_LINE
        assert result.stdout == ""
        assert result.exit_code == 2
        assert process_time() - start < PATIENCE_SECONDS
