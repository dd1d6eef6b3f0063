"""The documentation as a site: `make docs`, then open build/docs/index.html."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import memplan
from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx

project = "memplan"
author = "memplan contributors"
copyright = f"2026, {author}"
release = memplan.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_click", "sphinx_copybutton"]
html_theme = "furo"
html_title = "memplan"
html_static_path = ["pictures", "style"]
html_css_files = ["site.css"]
html_extra_path = ["schemas"]
exclude_patterns = ["_build"]
myst_enable_extensions = ["deflist"]
myst_heading_anchors = 4
copybutton_prompt_text = "$ "
copybutton_only_copy_prompt_lines = True
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
maximum_signature_line_length = 88
default_role = "code"
smartquotes = False

OUTSIDE = re.compile(r"\[([^\]]+)\]\((\.\./[^)#]+)[^)]*\)")


def outside(app: Sphinx, page: str, source: list[str]) -> None:
    """A link out of docs/ leads nowhere on the site: its words stay. A link to nothing is an error."""
    folder = (Path(app.srcdir) / page).parent

    def words(link: re.Match[str]) -> str:
        target = (folder / link[2]).resolve()
        if target.is_relative_to(app.srcdir):
            return link[0]
        if not target.exists():
            raise FileNotFoundError(f"{page}: {link[2]} is not there")
        return link[1]

    source[0] = OUTSIDE.sub(words, source[0])


ARGUMENT = re.compile(r"([a-z_]+(?:, [a-z_]+)*): (.*)")


def arguments(app: Sphinx, what: str, name: str, thing: object, options: object, lines: list[str]) -> None:
    """Lines of a docstring that tell an argument become a list, each with the lines behind it."""
    reported, inside = list[str](), False
    for line in lines:
        match = ARGUMENT.fullmatch(line)
        if match:
            reported += ["", f"- **{match[1]}**: {match[2]}"]
        elif inside and line:
            reported.append(f"  {line}")
        else:
            reported.append(line)
        inside = bool(line) and (inside or match is not None)
    lines[:] = reported


def examples(app: Sphinx, ctx: object, lines: list[str]) -> None:
    """Commands in a `--help` look like commands."""
    lines[:] = [EXAMPLE.sub(r"\1``\2``", line) for line in lines]


EXAMPLE = re.compile(r"^(\| *)(plan .*\S)\s*$")


def variables(app: Sphinx, ctx: object, lines: list[str]) -> None:
    """Variables of options are explained once, on the page about the command line."""
    lines.clear()


SYNONYMS: dict[str, list[str]] = tomllib.loads(Path(__file__).with_name("synonyms.toml").read_text())


def synonyms(app: Sphinx, tree: nodes.document) -> None:
    """Add a page's synonyms: phrases as entries of the index, which searches show first, and keywords."""
    phrases = SYNONYMS.get(app.env.docname, [])
    if phrases:
        entries = [("single", phrase, "", "main", None) for phrase in phrases]
        words = ",".join(re.findall(r"\w+", " ".join(phrases).lower()))
        tree.insert(0, addnodes.index(entries=entries))
        tree.insert(0, nodes.meta(name="keywords", content=words))


def setup(app: Sphinx) -> None:
    for event in ("sphinx-click-process-envvars", "sphinx-click-process-envars"):
        if event not in app.events.events:  # sphinx-click declares the first, and emits the second
            app.add_event(event)
        app.connect(event, variables)
    app.connect("sphinx-click-process-description", examples)
    app.connect("source-read", outside)
    app.connect("doctree-read", synonyms)
    app.connect("autodoc-process-docstring", arguments)
