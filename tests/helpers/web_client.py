"""Clients of the API in the process of a test, and a server in another."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from starlette.testclient import TestClient

from phrasechain.grounding.grounder import Grounder
from phrasechain.web.app import create_app
from phrasechain.web.guard import Access
from phrasechain.web.service import GroundService
from phrasechain.web.settings import ServerLimits


@contextlib.contextmanager
def local_client(grounder: Grounder, access: Access | None = None, **limits: Any) -> Iterator[TestClient]:
    service = GroundService(grounder, ServerLimits(**limits), workers=2)
    try:
        with TestClient(create_app(service, access), raise_server_exceptions=False) as client:
            yield client
    finally:
        service.close()


@contextlib.contextmanager
def started_server(*options: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A server in a process of its own: its address, once it is ready."""
    command = [sys.executable, "-m", "phrasechain", "serve", "--port", "0", *options]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stderr is not None
        lines: Sequence[str] = []
        for line in process.stderr:
            if " is ready " in line:
                yield line.split()[0], process
                break
            lines = [*lines, line]
        else:
            raise AssertionError(f"the server did not start: {lines}")
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)
        if process.stderr is not None:
            process.stderr.close()
