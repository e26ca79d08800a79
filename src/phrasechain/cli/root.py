"""The command-line program: its commands in the order of --help, --version, and exit statuses."""

from __future__ import annotations

import sys
from collections.abc import Callable
from io import TextIOWrapper
from typing import Annotated, NoReturn

import typer

from phrasechain import __version__
from phrasechain.cli.bench import bench
from phrasechain.cli.data import check, import_features, merge_stores
from phrasechain.cli.finder import train_finder
from phrasechain.cli.grounding import ground
from phrasechain.cli.models import compare, evaluate, export, import_authors, train
from phrasechain.cli.regions import extract, train_regions
from phrasechain.cli.web import serve
from phrasechain.core.errors import PhrasechainError
from phrasechain.core.files import reason
from phrasechain.core.terminal import printable

COMMANDS: dict[str, Callable[..., None]] = {
    "ground": ground,
    "serve": serve,
    "check": check,
    "train": train,
    "compare": compare,
    "evaluate": evaluate,
    "import-authors": import_authors,
    "export": export,
    "import-features": import_features,
    "train-regions": train_regions,
    "train-finder": train_finder,
    "extract": extract,
    "merge-stores": merge_stores,
    "bench": bench,
}
INTERRUPTED = 130  # typer's exit status after Ctrl-C

app = typer.Typer(
    help="Finds, for every noun phrase of a caption, the region of the image that it names.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
for _name, _command in COMMANDS.items():
    app.command(_name)(_command)


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
    """Run the command line; an error the user can fix is one line on stderr and status 2, an interrupt is 130."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(
            errors="backslashreplace"
        )  # as stderr does: an unencodable character is no reason to crash
    try:
        app()
    except PhrasechainError as error:
        _stop(str(error), 2)
    except OSError as error:
        _stop(f"{error.filename}: {reason(error)}" if error.filename else reason(error), 2)
    except SystemExit as end:
        if end.code == INTERRUPTED:
            _stop("interrupted", INTERRUPTED)
        raise


def _stop(message: str, status: int) -> NoReturn:
    print(f"phrasechain: {printable(message)}", file=sys.stderr)
    sys.exit(status)
