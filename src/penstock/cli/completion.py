"""`penstock completion`: the script that lets a shell complete commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

WHERE = {
    "bash": 'eval "$(penstock completion bash)"          in ~/.bashrc',
    "zsh": 'eval "$(penstock completion zsh)"           in ~/.zshrc, after compinit',
    "fish": "penstock completion fish | source           in ~/.config/fish/config.fish",
}


@click.command(epilog="\b\n" + "\n".join(WHERE.values()))
@click.argument("shell", type=click.Choice(list(WHERE)))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script of a shell; put this into the shell's start-up file:"""
    made = get_completion_class(shell)
    assert made is not None
    click.echo(made(ctx.find_root().command, {}, "penstock", "_PENSTOCK_COMPLETE").source())
