"""The pictures of docs/gallery.md: each section's commands are run, and the plan that they write is drawn.

Commands are those of the page, so a picture can't be of another plan. A picture is of the schedule with its
name (`gallery-NAME.svg`: `NAME.schedule.json`, or `schedule.json` in a folder `NAME`) and of the baseline,
dashed, or of the schedule that the image's title names. Searches have 10 s, and MEMPLAN_TIME_LIMIT is another
limit. The line after the picture gets the figures.

    python benchmarks/gallery.py [NAME …]
"""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from memplan.cli.printing.output import Output
from memplan.cli.replay import open_schedule
from memplan.graphs.units import duration, format_bytes
from memplan.planner.baseline import any_size, baseline_schedule
from plan_picture import LEFT, WIDTH, Curve, Picture, text

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "gallery.md"
IMAGE = re.compile(
    r"!\[(?P<title>[^\]]*)\]\(pictures/gallery-(?P<name>[\w-]+)\.svg(?: \"(?P<than>.*?)\")?\)\n\n"
)
LONG = re.compile(r"^<!-- not run: a search of .*-->\n", re.M)
"""Before blocks that docs/examples.py leaves out and this script does not."""
SECTION = re.compile(r"^## .*?(?=^## |\Z)", re.M | re.S)


def draw(name: str, title: str, than: str | None, folder: Path) -> tuple[str, str]:
    """Return the SVG of a plan in a folder, and its figures in one line.

    than: the schedule that is dashed, `NAME.schedule.json`; None for the baseline.
    """
    quiet = Output(as_json=False, quiet=True)
    paths = folder / f"{name}.schedule.json", folder / name / "schedule.json"
    held = open_schedule(next(path for path in paths if path.exists()), None, quiet)
    schedule, machine = held.file.schedule, held.machine
    plan = Curve(held.graph, schedule, machine, held.budget)
    eager, where = held.baseline_figures, any_size(held.graph)
    word = "the baseline" if held.graph.tensors.spread else "eager PyTorch"  # FSDP2 keeps less
    dashed = Curve(held.graph, baseline_schedule(held.graph), where, None)
    if than is not None:
        other = open_schedule(folder / f"{than}.schedule.json", None, quiet)
        eager, word = other.replay().figures, than
        dashed = Curve(other.graph, other.file.schedule, other.machine, other.budget)
    figures = held.replay().figures
    limit = held.budget or figures.peak
    times = _times(held.graph.source or {})
    slower = f"{figures.time / eager.time - 1:+z.1%}"
    line = (
        f"Simulated, {times}: {word} {format_bytes(eager.peak)}, the plan {format_bytes(figures.peak)} "
        f"within {format_bytes(limit)}, {slower} time "
        f"({duration(figures.time)} per iteration)"
    )
    if figures.host_peak:
        line += f"; up to {format_bytes(figures.host_peak)} in host memory"
    note = f"device memory over one iteration, simulated: {times}"
    picture = Picture(plan, dashed, limit, word)
    budget = text(f"budget {format_bytes(limit)}", LEFT + WIDTH, picture.y(limit) - 6, "soft", "end")
    return picture.svg(title, note, [budget]), f"{line}."


def _times(source: Mapping[str, Any]) -> str:
    """Return where the times of a graph's operations are from."""
    if "estimate" in source:
        return "estimated times, no GPU was used"
    return "times measured on 2 shared CPU cores" if source else "times of a generated graph"


def commands(section: str, folder: Path) -> None:
    """Run the blocks of a section as docs/examples.py runs pages."""
    script = runpy.run_path(str(PAGE.with_name("examples.py")))["script"]
    page, program = folder / "page.md", folder / "page.py"
    page.write_text(LONG.sub("", section))
    program.write_text("\n".join(script(page)))
    environment = {"MEMPLAN_TIME_LIMIT": "10s", **os.environ, "PYTHONPATH": str(folder)}
    subprocess.run([sys.executable, program], cwd=folder, env=environment, check=True)


def main(names: list[str]) -> None:
    for section in SECTION.findall(PAGE.read_text()):
        image = IMAGE.search(section)
        if image is None or (names and image["name"] not in names):
            continue
        with tempfile.TemporaryDirectory() as folder:
            commands(section, Path(folder))
            picture, line = draw(image["name"], image["title"], image["than"], Path(folder))
        (PAGE.parent / "pictures" / f"gallery-{image['name']}.svg").write_text(picture, encoding="utf-8")
        end = section[image.end() :]
        now = section[: image.end()] + line + end[len(end.partition("\n")[0]) :]
        PAGE.write_text(PAGE.read_text().replace(section, now))
        print(f"{image['name']}: {len(picture):,} B. {line}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
