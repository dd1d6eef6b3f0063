#!/bin/sh
# A short suite with other versions of what memplan needs than those of .venv, in an environment of its own:
#     versions.sh bounds    the lower bounds of pyproject.toml, but .venv's torch
#     versions.sh oldest    the lower bounds, torch's too
#     versions.sh newest    the newest that the index has
# On Linux the index has torch with CUDA only: about 4 GB to download and 7 GB of disk for `oldest`, 3 and 6 for
# `newest`.
set -eu
which=$1
if [ "$which" != newest ] && ! "${PYTHON:-python3}" -c 'import sys; sys.exit(sys.version_info >= (3, 13))'; then
    echo "the lower bounds are not tested: numpy 1.26 and numba 0.60 are for Python 3.11 and 3.12"
    exit
fi
here=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"${PYTHON:-python3}" - "$which" "$here/pyproject.toml" > "$work/packages" <<'PYTHON'
import sys
import tomllib
from pathlib import Path

which, path = sys.argv[1:]
project = tomllib.loads(Path(path).read_text())["project"]
extras = project["optional-dependencies"]
wanted = [*project["dependencies"], *extras["gurobi"], *extras["moccasin"], *extras["examples"], *extras["torch"]]
wanted = [each for each in wanted if not each.startswith("memplan")]
if which == "bounds":
    wanted = [each for each in wanted if each not in extras["torch"]]
print("\n".join(each.partition(">=")[0] if which == "newest" else each.replace(">=", "==") for each in wanted))
PYTHON

"${PYTHON:-python3}" -m venv "$work/venv"
python="$work/venv/bin/python"
if [ "$which" = bounds ]; then  # what is not installed here is taken from .venv
    other=$("$here/.venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    site=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    echo "import site; site.addsitedir('$other')" > "$site/other.pth"
    "$python" -m pip install --quiet --no-compile --no-warn-conflicts --ignore-installed --requirement "$work/packages"
else
    "$python" -m pip install --quiet --no-compile --requirement "$work/packages" hypothesis pytest pytest-timeout pytest-xdist
    "$python" -m pip install --quiet --no-deps --editable "$here"
fi

cd "$here"
"$python" -m pip list --format freeze | grep -iE "^(click|gurobipy|highspy|joblib|networkx|numba|numpy|ortools|pulp|pyyaml|rich|torch|transformers)="
export OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1
# click, rich and PyYAML; HiGHS, PuLP, Gurobi and OR-Tools; numba, numpy and networkx; torch and transformers.
"$python" -m pytest --numprocesses 2 \
    tests/cli/test_show.py tests/graphs/files/test_files.py \
    tests/solvers/milp/test_solve.py tests/solvers/bounds/offload/test_offload_bound.py tests/solvers/recomputation/moccasin/test_moccasin.py \
    tests/solvers/recomputation/search/test_search.py tests/solvers/recomputation/tw_remat/test_tw_remat.py \
    tests/tracing/test_trace.py tests/devices/measuring/test_live_bytes.py tests/profiling/profile/test_roofline.py tests/steps/test_execute.py tests/tracing/test_trace_losses.py
