#!/bin/sh
# Build the wheel, install it in a clean environment without torch, and use `plan` from another folder.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cp -r "$here" "$work/source"
rm -rf "$work/source/.venv" "$work/source/build"
"${PYTHON:-python3}" -m pip wheel --quiet --no-deps --wheel-dir "$work" "$work/source"
"${PYTHON:-python3}" -m venv "$work/clean"
"$work/clean/bin/python" -m pip install --quiet "$work"/memplan-*.whl

cd "$work"
plan="$work/clean/bin/plan"
"$plan" --help
"$work/clean/bin/python" - <<'PYTHON'
import importlib.util
assert importlib.util.find_spec("torch") is None, "the clean environment has torch"
from memplan.graphs.files import save_graph
from memplan.graphs.generators import chain
save_graph(chain(8), "graph.yaml")
PYTHON
"$plan" solve graph.yaml --budget 70% --solver rotor -o schedule.json
"$plan" check schedule.json --graph graph.yaml
echo "the wheel works on its own, without torch"
