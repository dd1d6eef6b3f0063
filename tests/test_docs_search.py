"""The built site: searches find the right page among the first three, pages fit a phone.

The site's own search runs, in node: Sphinx's searchtools.js with the index of the site.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from page_widths import CHROMIUM, WIDTHS, probed

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
NODE = shutil.which("node")

SEARCHES = {
    "OOM": "how-to/out-of-memory",
    "out of memory": "how-to/out-of-memory",
    "CUDA out of memory": "how-to/out-of-memory",
    "torch.OutOfMemoryError": "how-to/out-of-memory",
    "multi GPU": "training/several-gpus",
    "multiple gpus": "training/several-gpus",
    "DDP": "training/several-gpus",
    "FSDP": "sharded",
    "batch size": "how-to/another-gpu",
    "how much VRAM": "how-to/another-gpu",
    "gradient checkpointing": "choose",
    "gradient accumulation": "training/optimizers",
    "mixed precision": "training/precision",
    "qlora": "how-to/lora",
    "fine-tuning": "how-to/fine-tune",
    "hugging face trainer": "training/trainer",
    "cpu offload": "how-to/larger-than-the-card",
    "resume training": "training/checkpoints",
    "sequence length": "how-to/many-shapes",
    "torch.compile": "training/speed",
    "data-dependent": "training/untraceable",
    "install": "start",
    "budget too small": "troubleshooting",
    "stable diffusion": "how-to/diffusion-lora",
}
"""What people type, and the page that answers it."""

RUN = """
const fs = require("fs"), vm = require("vm"), path = require("path");
const [folder, ...queries] = process.argv.slice(2);
const element = () => ({ appendChild: (child) => child, classList: { add() {} }, setAttribute() {} });
const page = { getElementById: () => null, addEventListener() {}, createElement: element };
const context = { document: page, window: {}, console, SPHINX_HIGHLIGHT_ENABLED: false, _: (text) => text };
Object.assign(context, { DOCUMENTATION_OPTIONS: {}, _ready() {}, localStorage: { setItem() {} } });
vm.createContext(context);
for (const name of ["_static/language_data.js", "_static/searchtools.js", "searchindex.js"])
  vm.runInContext(fs.readFileSync(path.join(folder, name), "utf8"), context);
context.queries = queries;
context.Stemmer = context.window.Stemmer;
// `_performSearch` returns the best last: the page pops them.
const search = "(query) => Search._performSearch(...Search._parseQuery(query)).reverse().map((h) => h[0])";
const found = vm.runInContext(`queries.map(${search})`, context);
console.log(JSON.stringify(found));
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("sphinx")
    pytest.importorskip("furo")
    folder = tmp_path_factory.mktemp("site")
    subprocess.run([sys.executable, "-m", "sphinx", "-q", DOCS, folder], check=True, capture_output=True)
    return folder


@pytest.mark.scripts
@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ["cli", "index", "choose", "comparisons", "reference/commands"])
def test_pages_fit_a_phone_and_a_desk(site: Path, name: str) -> None:
    for width, dark in WIDTHS:
        found = probed(site / f"{name}.html", width, dark)
        assert found["page"], (width, dark)
        assert not found["out"], (width, found["out"])
        assert name != "cli" or not found["sideways"], width  # its tables have two columns
        assert (found["ground"] < 0.2 and found["ink"] > 0.7) if dark else found["ground"] > 0.8


@pytest.mark.scripts
@pytest.mark.skipif(NODE is None, reason="there is no node")
@pytest.mark.timeout(300)
def test_searches_find_the_right_page_among_the_first_three(site: Path, tmp_path: Path) -> None:
    (tmp_path / "run.js").write_text(RUN)
    ended = subprocess.run(
        [str(NODE), tmp_path / "run.js", site, *SEARCHES], check=True, capture_output=True, text=True
    )
    found = {
        query: list(dict.fromkeys(pages))[:3]
        for query, pages in zip(SEARCHES, json.loads(ended.stdout), strict=True)
    }
    wrong = {query: pages for query, pages in found.items() if SEARCHES[query] not in pages}
    assert not wrong


def test_pages_with_synonyms_are_there() -> None:
    for page, phrases in tomllib.loads((DOCS / "synonyms.toml").read_text()).items():
        assert (DOCS / f"{page}.md").exists(), page
        assert len({phrase.lower() for phrase in phrases}) == len(phrases), page
