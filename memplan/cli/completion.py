"""`plan completion`: the script by which a shell completes commands, options and names."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from .help import PlanCommand
from .options import output_options
from .parameter_types import Word
from .printing.output import Output

NAMES = ("plan", "memplan")
"""Names of the command."""


@click.command(cls=PlanCommand)
@click.argument("shell", type=Word(("bash", "zsh", "fish")))
@output_options
def completion(shell: str, output: Output) -> None:
    """Print the script by which SHELL (bash, zsh, fish) completes commands, options and names.

    It is for both names of the command, `plan` and `memplan`. In ~/.bashrc, ~/.zshrc or
    ~/.config/fish/config.fish:

    \b
    eval "$(plan completion bash)"
    eval "$(plan completion zsh)"
    plan completion fish | source

    Or as a file that the shell loads when it needs it:

    \b
    plan completion bash > ~/.local/share/bash-completion/completions/plan
    """
    script = get_completion_class(shell)
    assert script is not None  # SHELL is one of those that click has
    # A program asks by a variable, which `main` reads by the first name whatever it was called by.
    variable = f"_{NAMES[0].upper()}_COMPLETE"
    command = click.get_current_context().find_root().command
    text = "".join(script(command, {}, name, variable).source() for name in NAMES)
    if output.as_json:
        output.document({"shell": shell, "script": text})
    else:
        click.echo(text)
