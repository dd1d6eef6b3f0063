#!/bin/sh
# Build wheel and source archive into dist/, and check what an index would: metadata, the README as it renders, links
# that lead somewhere, one version everywhere. Then ask the wheel whether a model fits, with PYTHON's own PyTorch.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

python="${PYTHON:-python3}"
rm -rf "$here/dist"
"$python" -m pip install --quiet --target "$work/tools" build twine
PYTHONPATH="$work/tools" "$python" -m build --outdir "$here/dist" "$here" > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }
PYTHONPATH="$work/tools" "$python" -m twine check --strict "$here"/dist/*
"$python" - "$here" <<'PYTHON'
import re
import sys
import zipfile
from email import message_from_bytes
from pathlib import Path

here = Path(sys.argv[1])
(wheel,) = (here / "dist").glob("*.whl")
with zipfile.ZipFile(wheel) as archive:
    (name,) = (one for one in archive.namelist() if one.endswith(".dist-info/METADATA"))
    metadata = message_from_bytes(archive.read(name))
version = metadata["Version"]
cited = re.search(r"^version: (.*)$", (here / "CITATION.cff").read_text(), re.M)
assert cited is not None and cited[1] == version, f"CITATION.cff has not version {version}"
for key in ("Name", "Summary", "Requires-Python", "License-Expression", "Description-Content-Type"):
    assert metadata[key], f"the metadata lack {key}"
assert metadata["Description-Content-Type"] == "text/markdown"
links = re.findall(r"\]\(([^)#]+)[^)]*\)", metadata.get_payload())
lost = [link for link in links if "://" not in link and not (here / link).exists()]
assert not lost, f"README links to nothing: {lost}"
print(f"memplan {version}: metadata, citation and README agree")
PYTHON
"$python" -m pip install --quiet --no-deps --target "$work/wheel" "$here"/dist/memplan-*.whl
cd "$work"
cat > model.py <<'MODEL'
import torch


def build():
    return torch.nn.Linear(8, 8), (torch.ones(4, 8),), torch.sum
MODEL
PYTHONPATH="$work/wheel" "$python" -c "import memplan; assert memplan.__file__.startswith('$work'), memplan.__file__"
PYTHONPATH="$work/wheel" "$python" -m memplan size model.py --gpu rtx3060 --batch 4 --time-limit 2 --json | grep -q '"command": "size"'
echo "dist/ can be uploaded"
