"""Figures that pages print are those of the commands and pictures that they show."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from memplan.cli.main import main

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT))
from docs.figures import figures  # noqa: E402

START = (ROOT / "docs" / "start.md").read_text()
README = (ROOT / "README.md").read_text()


@pytest.mark.scripts
def test_the_model_of_the_first_steps_has_the_figures_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Operations, tensors and peak; times are of the machine."""
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    model = re.search(r"<!-- file: model.py -->\n```python\n(.*?)```", START, re.S)
    printed = re.search(r"(\d+) operations, (\d+) tensors\n.*?peak ([\d,]+) B = ([\d.]+ \w+)", START)
    assert model is not None
    assert printed is not None
    Path("model.py").write_text(model[1])
    result = CliRunner().invoke(main, ["profile", "model.py", "-o", "graph.yaml", "--json"])
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert (found["operations"], found["tensors"]) == (int(printed[1]), int(printed[2]))
    assert found["baseline_peak"] == int(printed[3].replace(",", ""))
    assert printed[4] == f"{found['baseline_peak'] / 2**20:.2f} MiB"


def test_the_way_to_a_plan_of_an_own_model_is_short() -> None:
    """At most 600 words from the top to the report of a model, and 4 commands."""
    shown = re.sub(r"<!--.*?-->|```.*?```", "", README, flags=re.S)
    way = shown[: shown.index("## Three lines")]
    assert len(way.split()) <= 600
    begin, end = README.index("## Install"), README.index("## Three lines")
    commands = re.findall(r"^(?:pip|plan) .*", README[begin:end], re.M)
    assert [line.split()[:2] for line in commands][:2] == [["pip", "install"], ["plan", "optimize"]]
    assert len(commands) <= 4


def test_the_picture_says_what_the_text_says_and_that_it_is_simulated() -> None:
    picture = (ROOT / "docs" / "pictures" / "llama-lora.svg").read_text()
    assert "simulated: estimated times, no GPU was used" in picture
    assert picture.count('marker-end="url(#head)"') == 3
    caption = README[README.index("llama-lora.svg") :].split("\n\n")[1]
    assert "imulated" in caption
    sizes = set(re.findall(r"[\d.]+ GiB", caption))
    assert sizes == {size for size in re.findall(r">[^<]*?([\d.]+ GiB)[^<]*</text>", picture) if "." in size}
    assert set(re.findall(r"\+[\d.]+ ?%", caption.replace(" %", "%"))) == set(
        re.findall(r"\+[\d.]+%", picture)
    )


def test_the_models_that_work_are_those_of_the_lab_book() -> None:
    """The page groups families of models: its sums are those of the lab book's table."""
    book = (ROOT / "benchmarks" / "results" / "strangers.md").read_text()
    drawn = re.findall(r"^\| (\w[\w ]*), drawn \| (\d+) \| (\d+) \|", book, re.M)
    listed = re.findall(r"^\| ([\w ]+) \| (\d+) \| (\d+) \|", book, re.M)
    page = (ROOT / "docs" / "compatibility.md").read_text()
    shown = re.findall(r"^\| ([\w ,]+) \| (\d+) \| (\d+) \|$", page, re.M)
    assert len(shown) == 7
    packages = {"torch_geometric": "PyTorch Geometric", "PyTorch": "PyTorch itself"}
    sums: dict[str, list[int]] = {}
    for name, *counts in (*listed, *drawn):
        known = packages.get(name, name)
        row = next((row for row, *_ in shown if known in row.split(", ")), "ten smaller packages")
        for place, count in enumerate(counts):
            sums.setdefault(row, [0, 0])[place] += int(count)
    sums["all"] = [sum(column) for column in zip(*sums.values(), strict=True)]
    assert {name: [int(run), int(works)] for name, run, works in shown} == sums
    assert len({name for name, *_ in drawn} - {row for row, *_ in listed} - {"torch_geometric"}) == 10


def test_pictures_of_the_gallery_are_small_and_say_what_the_page_says() -> None:
    """benchmarks/gallery.py writes both: budget, where times are from, and whom the plan is compared with."""
    page = (ROOT / "docs" / "gallery.md").read_text()
    shown = re.findall(r"\(pictures/(gallery-[\w-]+\.svg)[^)]*\)\n\n(.*)", page)
    folder = ROOT / "docs" / "pictures"
    assert {name for name, _line in shown} == {path.name for path in folder.glob("gallery-*.svg")}
    assert len(shown) == page.count("\n## ") - 1  # LoRA has README's picture
    for name, line in shown:
        picture = (folder / name).read_text()
        assert len(picture) < 50_000
        found = re.fullmatch(
            r"Simulated, (.*): (.*) [\d.]+ \wiB, the plan ([\d.]+ \wiB) within ([\d.]+ \wiB), .*", line
        )
        assert found is not None, line
        times, other, _peak, budget = found.groups()
        assert f">device memory over one iteration, simulated: {times}<" in picture
        assert f">budget {budget}<" in picture
        assert f">{other}<" in picture


def test_figures_of_several_pages_are_those_of_the_data_file() -> None:
    """`python docs/figures.py` writes them; a page that quotes one without being listed is found too."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    texts = {path: path.read_text() for path in pages}
    for figure in figures():
        assert figure.source.is_file(), figure.name
        assert {path for path in pages if figure.quoted(texts[path])} == {*figure.pages}, figure.name
        for path in figure.pages:
            assert all(found == figure.values for found in figure.quoted(texts[path])), (figure.name, path)
            assert figure.written(texts[path]) == texts[path]


def test_a_figure_written_by_hand_is_replaced() -> None:
    times = next(figure for figure in figures() if figure.name.startswith("published times"))
    page = "Of 54 times that nothing was fitted to, 91 % are within a factor of 1.4; of 18 peaks, all."
    assert times.quoted(page) == [["54", "91", "1.4"]]
    assert times.written(page).startswith("Of 115 times that nothing was fitted to, 97 % are within")
