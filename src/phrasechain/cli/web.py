"""For someone with a browser: ``serve``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from phrasechain.cli.common import limit_spinning
from phrasechain.core.errors import DataError
from phrasechain.core.terminal import printable

_EXTRA = ("fastapi", "uvicorn", "starlette", "pydantic", "pydantic_core", "python_multipart")


def serve(
    host: Annotated[str, typer.Option(help="The address to listen at; 0.0.0.0 lets other computers in.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="0 takes a free one.")] = 8000,
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
    model: Annotated[
        str | None, typer.Option(metavar="FOLDER|HUB_ID", help="Another model than the embedded one.")
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A file with a token that clients of the API must send.")
    ] = None,
    cors: Annotated[
        list[str] | None,
        typer.Option(metavar="ORIGIN", help="Another site whose pages may use the API; may be repeated."),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
) -> None:
    """Serve a page where a caption is grounded on a photo, and its JSON API.

    See docs/api.md. Photos stay in memory and on this computer.
    """
    begin = time.perf_counter()
    limit_spinning()
    from phrasechain.core.memory import collector_paused

    with collector_paused():
        try:
            from phrasechain.web.serve import serve as run
        except ImportError as error:
            if (error.name or "").split(".")[0] not in _EXTRA:
                raise
            raise DataError("the server is not installed: pip install 'phrasechain[web]'") from None
    run(
        host,
        port,
        lambda line: typer.echo(printable(line), err=True),
        begin=begin,
        model=model,
        device=device,
        token_file=token_file,
        origins=cors or (),
        open_page=open_page,
    )
