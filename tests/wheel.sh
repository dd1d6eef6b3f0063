#!/bin/sh
# Build the wheel twice, with a deleted file and stray folders between: the same bytes. Build it from the source
# archive, and from a clone without symbolic links, as Windows makes it: the same bytes. Install it in a clean
# environment without torch, and use `plan` from another folder.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

python="${PYTHON:-python3}"
git -C "$here" ls-files -z | (cd "$here" && tar --create --null --files-from=-) | (mkdir "$work/source" && tar -x -C "$work/source")
export SOURCE_DATE_EPOCH=1700000000  # dates of files are no difference
mkdir "$work/source/solvers/gone" "$work/source/scratch"
touch "$work/source/solvers/gone/__init__.py" "$work/source/scratch/__init__.py"
"$python" -m pip wheel --quiet --no-deps --wheel-dir "$work/before" "$work/source"
"$python" -m zipfile --list "$work"/before/memplan-*.whl > "$work/names"
grep -q "solvers/gone" "$work/names"  # a folder of a package is part of it
if grep -qE "^memplan/(scratch|tests|benchmarks|docs|src)/" "$work/names"; then
    echo "the wheel holds folders that are not memplan's" && exit 1
fi
rm -r "$work/source/solvers/gone" "$work/source/scratch"
"$python" -m pip wheel --quiet --no-deps --wheel-dir "$work" "$work/source"
"$python" -m pip wheel --quiet --no-deps --wheel-dir "$work/again" "$work/source"
cmp "$work"/memplan-*.whl "$work"/again/memplan-*.whl
"$python" -m pip install --quiet --target "$work/build" build
PYTHONPATH="$work/build" "$python" -m build --sdist --outdir "$work/archive" "$work/source" > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }
"$python" -m pip wheel --quiet --no-deps --wheel-dir "$work/archive" "$work"/archive/memplan-*.tar.gz
cmp "$work"/memplan-*.whl "$work"/archive/memplan-*.whl
git -C "$work/source" init --quiet
git -C "$work/source" add --all
git -C "$work/source" -c user.name=wheel -c user.email=wheel@localhost commit --quiet --message source
git -c core.symlinks=false clone --quiet "$work/source" "$work/without_links"
test ! -d "$work/without_links/planner"
"$python" -m pip wheel --quiet --no-deps --wheel-dir "$work/third" "$work/without_links"
cmp "$work"/memplan-*.whl "$work"/third/memplan-*.whl
"$python" -m venv "$work/clean"
"$work/clean/bin/python" -m pip install --quiet "$work"/memplan-*.whl

cd "$work"
plan="$work/clean/bin/plan"
"$plan" --help
"$work/clean/bin/python" - "$work/source" <<'PYTHON'
import importlib.util
import sys
from pathlib import Path
import memplan
assert importlib.util.find_spec("torch") is None, "the clean environment has torch"
source, there = Path(sys.argv[1], "memplan"), Path(memplan.__file__).parent
files = [path.relative_to(source) for path in source.rglob("*") if path.is_file() and path.suffix != ".pyc"]
missing = [str(path) for path in files if not (there / path).is_file()]
assert len(files) > 300 and not missing, f"the wheel lacks {missing}"
from memplan.instances.catalogue import entries
assert all(entry.path.is_file() for entry in entries() if entry.path), "the wheel lacks instances"
from memplan.graphs.files.files import save_graph
from memplan.graphs.generators import chain
save_graph(chain(8), "graph.yaml")
PYTHON
"$plan" solve graph.yaml --budget 70% --solver rotor -o schedule.json
"$plan" check schedule.json --graph graph.yaml
"$plan" instances gpt2-6 -o gpt2.json
"$plan" instances unet -o unet.json
"$plan" export moccasin unet.json -o moccasin.json
"$plan" import moccasin moccasin.json -o again.yaml
"$plan" report schedule.json --graph graph.yaml -o report.html
echo "the wheel works on its own, without torch"
