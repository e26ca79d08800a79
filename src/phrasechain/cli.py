"""The command line. Commands import what they run inside their bodies: --help answers without torch."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from phrasechain import __version__
from phrasechain.errors import PhrasechainError

app = typer.Typer(
    help="Finds, for every noun phrase of a caption, the region of the image that it names.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"phrasechain {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line; an error the user can mend is one line on stderr and status 2."""
    try:
        app()
    except PhrasechainError as error:
        print(f"phrasechain: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("phrasechain: interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
