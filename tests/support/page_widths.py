"""A page in a browser, in a frame of some width, in light or in dark: what is cut off, what is too small."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
WIDTHS = ((390, False), (390, True), (1440, False), (1440, True))
"""Widths of a phone and of a desk, each in light and in dark."""
SMALLEST_TEXT = 9.0
"""Pixels of height below which a label can't be read."""

PROBE = """
<script>
const waiting = setInterval(() => {
  if (document.getElementById("chart") && !document.body.dataset.ready) return;
  clearInterval(waiting);
  const overflow = (node) => getComputedStyle(node).overflowX;
  const scrolls = (node) => node && (/auto|scroll/.test(overflow(node)) || scrolls(node.parentElement));
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), texts = [];
  while (walker.nextNode()) {
    const range = document.createRange(), node = walker.currentNode;
    range.selectNodeContents(node);
    if (node.data.trim() && range.getClientRects().length) texts.push([node, range.getBoundingClientRect()]);
  }
  const words = (found) => found.slice(0, 5).map(([node]) => node.data.trim());
  const light = (colour) => colour.match(/[0-9.]+/g).slice(0, 3).reduce((sum, part) => sum + part / 765, 0);
  const style = getComputedStyle(document.body);
  parent.postMessage(JSON.stringify({
    page: document.documentElement.scrollWidth <= innerWidth,
    width: innerWidth,
    texts: texts.length,
    out: words(texts.filter(([node, { right }]) => right > innerWidth + 1 && !scrolls(node.parentElement))),
    sideways: [...document.querySelectorAll("table")].filter(
      ({ parentElement: box }) => box.scrollWidth > box.clientWidth + 1
    ).length,
    cut: [...document.querySelectorAll("svg")].filter(
      (node) => node.getBoundingClientRect().right > innerWidth
    ).length,
    small: words(texts.filter(([, { height }]) => height < SMALLEST)),
    ground: light(style.backgroundColor),
    ink: light(style.color),
  }), "*");
}, 20);
</script>
""".replace("SMALLEST", str(SMALLEST_TEXT))

# A window of chromium is at least 500 pixels wide, a frame in it may be narrower.
FRAME = """<!doctype html><body><iframe src="{page}" width="{width}" height="900" frameborder="0"></iframe>
<script>
addEventListener("message", ({{ data }}) => {{
  document.body.append(Object.assign(document.createElement("pre"), {{ id: "probe", textContent: data }}));
}});
</script></body>"""


def probed(path: Path, width: int, dark: bool) -> dict[str, Any]:
    """Measure a page in a frame of that width."""
    tried, frame = path.with_name(f"probe-{path.name}"), path.with_name("frame.html")
    tried.write_text(path.read_text() + PROBE)
    frame.write_text(FRAME.format(page=tried.as_uri(), width=width))
    assert CHROMIUM is not None
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=20000"]
    command += [f"--user-data-dir={path.parent / 'profile'}", "--window-size=1600,1000", "--dump-dom"]
    command += [f"--blink-settings=preferredColorScheme={0 if dark else 1}", frame.as_uri()]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120)
    found = re.search(r'<pre id="probe">(.*?)</pre>', ran.stdout, re.DOTALL)
    assert found is not None, ran.stderr
    return json.loads(unescape(found[1]))
