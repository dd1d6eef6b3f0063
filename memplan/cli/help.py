"""`--help` of a command: its options in groups, those that most people need first."""

from __future__ import annotations

from collections.abc import Iterator

import click

from .meant import meant
from .optimizer_options import OPTIMIZER_KEYS

FIRST = {
    "bench": ("corpus", "solvers", "budgets", "time-limit", "output"),
    "compare": ("budget", "solvers", "time-limit"),
    "optimize": ("budget", "device", "optimizer", "gpu", "output"),
    "pareto": ("points", "budgets", "time-limit", "output", "report"),
    "profile": ("device", "optimizer", "gpu", "output"),
    "run": ("model", "graph", "device", "timing-repeats", "trace"),
    "shard": ("ranks", "link", "output"),
    "size": ("gpu", "batch", "seq-len", "optimizer", "lora"),
    "solve": ("budget", "solver", "time-limit", "machine", "output"),
    "train": ("model", "steps", "checkpoint", "save-every"),
}
"""Long names of the options that most people need of a command with many, in that order."""

GROUPS = {
    "Search": (
        *("solver", "time-limit", "gap", "set", "allow", "bound-time", "start", "split-fixed", "budgets"),
        *("seeds", "baseline", "workers", "backend", "filter", "rerun"),
    ),
    "Memory and machine": (
        "machine",
        "reserve",
        "static-layout",
        "host",
        "lanes",
        "disk",
        "cuda-graph",
        "expandable-segments",
    ),
    "Measure or estimate": ("device", "estimate", "gpu", "compile", "split", "split-exact", "remeasure"),
    "Model and training loop": (
        *("dtype", "quantize", "autocast", "attention", "accumulate", "global-batch", "train-config"),
    ),
    "Optimizer": tuple(key.replace("_", "-") for key in OPTIMIZER_KEYS),
    "Several GPUs": (
        "ranks",
        "link",
        "replicas",
        "replica-link",
        "node-ranks",
        "offload-shares",
        "param-dtype",
        "reduce-dtype",
    ),
    "Output": (
        *("output", "html", "plots", "log", "certificate", "trace", "csv", "svg", "dot", "dry-run"),
        *("published", "compare", "tolerance", "update-best", "price", "cache"),
        *("json", "quiet", "verbose", "debug", "help"),
    ),
}
"""Heading -> long names of options. An option is in the same group in all commands."""

_FEW = 8
"""Number of options up to which a command has one list; flags of the output are apart in any."""

NOT_VARIABLES = ("debug", "help", "output")
"""Options that are for one call."""

_VARIABLES = (
    "Each option but {} is also a variable, like MEMPLAN_{}, and, if it names no file, a key "
    "of [tool.memplan] in pyproject.toml."
)


def long_name(option: click.Parameter) -> str:
    """Return an option's long name without dashes, the first of a pair like --fused/--no-fused."""
    return max(option.opts, key=len).lstrip("-")


def option_groups(command: click.Command, ctx: click.Context) -> dict[str, list[click.Option]]:
    """Return the options of a command by heading, the most important group first."""
    options = [one for one in command.get_params(ctx) if isinstance(one, click.Option)]
    by_name = {long_name(one): one for one in options}
    heading_of = {name: heading for heading, names in GROUPS.items() for name in names}
    first = FIRST.get(str(command.name), ())
    groups: dict[str, list[click.Option]] = {"Options": [by_name[name] for name in first]}
    groups |= {heading: [] for heading in GROUPS}
    own = [name for name in by_name if name not in NOT_VARIABLES]
    for name, option in by_name.items():
        if name not in first:
            heading = heading_of.get(name, "Options")
            few = len(own) <= _FEW and heading != "Output"
            groups["Options" if few or (option.required and not first) else heading].append(option)
    return {heading: members for heading, members in groups.items() if members}


class PlanCommand(click.Command):
    """A command whose `--help` has its options in groups, and one sentence on variables at the end.

    Of an unknown option it names those that may be meant.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            own = [one for one in self.get_params(ctx) if isinstance(one, click.Option)]
            near = " or ".join(meant(error.option_name, own))
            line = f"No such option {error.option_name!r}." + (f" Did you mean {near}?" if near else "")
            raise click.NoSuchOption(error.option_name, line, ctx=ctx) from None

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups = option_groups(self, ctx)
        records = {heading: [*_records(options, ctx)] for heading, options in groups.items()}
        # the groups have one column of names: of the longest that leaves room for the texts
        width = min(32, max(len(name) for rows in records.values() for name, _text in rows))
        for heading, rows in records.items():
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(width), text) for name, text in rows], col_max=width)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        names = [long_name(one) for one in self.get_params(ctx) if isinstance(one, click.Option)]
        left_out = [f"--{name}" for name in names if name in NOT_VARIABLES]
        example = next((name for name in names if name not in NOT_VARIABLES), None)
        if example is not None:
            listed = " and ".join(filter(None, [", ".join(left_out[:-1]), *left_out[-1:]]))
            variable = f"{example.upper().replace('-', '_')} for --{example}"
            formatter.write_paragraph()
            formatter.write_text(_VARIABLES.format(listed, variable))
        super().format_epilog(ctx, formatter)


def _records(options: list[click.Option], ctx: click.Context) -> Iterator[tuple[str, str]]:
    for option in options:
        record = option.get_help_record(ctx)
        if record is not None:
            yield record
