"""``phrasechain serve``: the server's process, from loading the model to a clean end."""

from __future__ import annotations

import ipaddress
import os
import signal
import socket
import threading
import time
import webbrowser
from collections.abc import Callable, Sequence
from pathlib import Path

import uvicorn

from phrasechain.core.errors import DataError
from phrasechain.core.files import read_bounded
from phrasechain.core.images import without_warnings
from phrasechain.grounding.grounder import Grounder
from phrasechain.web.app import create_app
from phrasechain.web.guard import Access
from phrasechain.web.service import GroundService
from phrasechain.web.settings import ServerLimits

_LEAST_TOKEN = 16  # characters
_LOCAL = ("localhost", "127.0.0.1", "::1")
_GRACE = 5  # seconds that requests have to finish once the server is to end
_CONNECTIONS = 512


def read_token(path: Path) -> str:
    """The token in a file: one line of 16 or more printable characters of ASCII."""
    token = read_bounded(path, 4096).decode("utf-8", "replace").strip()
    if len(token) < _LEAST_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise DataError(f"{path}: a token is one word of {_LEAST_TOKEN} or more letters, digits and signs of ASCII")
    return token


def is_local(host: str) -> bool:
    """Whether only this computer can reach a server that is bound to this address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def serve(
    host: str,
    port: int,
    say: Callable[[str], None],
    *,
    begin: float,
    model: str | None = None,
    device: str = "auto",
    token_file: Path | None = None,
    origins: Sequence[str] = (),
    open_page: bool = False,
    limits: ServerLimits | None = None,
) -> None:
    """Load the model, serve until interrupted, and end in order.

    ``say`` gets a line for the user now and then, ``begin`` is when the command began, by ``time.perf_counter``.
    """
    token = None if token_file is None else read_token(token_file)
    if not is_local(host) and token is None:
        say(f"warning: other computers can reach {host}, and anybody there may use it; --token-file asks for a token")
    door = _bind(host, port)
    service = GroundService(Grounder.from_pretrained(model, device=device, photos=0), limits)
    app = create_app(service, Access(token, _LOCAL if is_local(host) else None, origins))
    server = _Server(
        uvicorn.Config(
            app,
            log_level="warning",
            server_header=False,
            timeout_keep_alive=15,
            timeout_graceful_shutdown=_GRACE,
            limit_concurrency=_CONNECTIONS,
        )
    )

    def ready(address: str) -> None:
        say(f"{address} is ready after {time.perf_counter() - begin:.1f} s; Ctrl-C ends it")
        if open_page:
            threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()

    server.on_ready = ready
    for number in (signal.SIGINT, signal.SIGTERM):  # uvicorn ends in order and then raises them again
        signal.signal(number, lambda *_: None)
    try:
        with without_warnings():
            server.run([door])
    finally:
        service.close()


def _bind(host: str, port: int) -> socket.socket:
    try:
        bound = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # for its connections: else each answer waits 40 ms
        return bound
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else str(error)
        raise DataError(f"{host}:{port} cannot be used: {why}; choose another --host or --port") from None


class _Server(uvicorn.Server):
    """Uvicorn, which tells when it can be reached, and where."""

    on_ready: Callable[[str], None]

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        self.on_ready(f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}")
