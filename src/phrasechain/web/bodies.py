"""The bodies of requests: received within bounds of size and time, never on disk, as JSON or as a form."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request

from phrasechain.web.errors import ApiError, busy
from phrasechain.web.settings import ServerLimits

M = TypeVar("M", bound=BaseModel)
_FIELDS = 20  # of a form


class BodyReader:
    """Reads requests; what all of them hold at one time is bounded too."""

    def __init__(self, limits: ServerLimits) -> None:
        self.limits, self._held = limits, 0

    async def read(self, request: Request, model: type[M]) -> M:
        """The request as the model has it; what does not fit is told by name."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind not in ("application/json", "multipart/form-data"):
            raise ApiError(415, "send application/json, or a form (multipart/form-data) with a file")
        body = await self._receive(request)
        values = _parse_json(body) if kind == "application/json" else await self._parse_form(request, body)
        try:
            found = model.model_validate(values)
        except ValidationError as error:
            raise ApiError(422, _sentence(error)) from None
        image = getattr(found, "image", None)
        if image is not None and len(image) > self.limits.upload_bytes:
            raise _too_large(self.limits)
        return found

    async def _receive(self, request: Request) -> bytes:
        length = request.headers.get("content-length", "0")
        if not length.isdigit() or int(length) > self.limits.body_bytes:
            raise _too_large(self.limits)
        body, held = bytearray(), 0
        try:
            async for chunk in request.stream():
                body += chunk
                held += len(chunk)
                self._held += len(chunk)
                if len(body) > self.limits.body_bytes:
                    raise _too_large(self.limits)
                if self._held > self.limits.buffered_bytes:
                    raise busy("too many large requests at once")
        except ClientDisconnect:
            raise ApiError(400, "the request ended early") from None
        finally:
            self._held -= held
        return bytes(body)

    async def _parse_form(self, request: Request, body: bytes) -> dict[str, Any]:
        async def chunks() -> AsyncGenerator[bytes, None]:
            yield body
            yield b""

        parser = MultiPartParser(
            request.headers, chunks(), max_files=1, max_fields=_FIELDS, max_part_size=self.limits.body_bytes
        )
        parser.spool_max_size = self.limits.body_bytes + 1  # so that no file is ever written to disk
        try:
            form = await parser.parse()
        except (MultiPartException, ValueError, KeyError) as error:
            raise ApiError(400, f"not a form: {getattr(error, 'message', error)}") from None
        values: dict[str, Any] = {}
        for name, value in form.multi_items():
            values[name] = await value.read() if isinstance(value, UploadFile) else value
        for name in ("phrases", "captions"):
            if isinstance(values.get(name), str):
                values[name] = _parse_json(values[name].encode(), f"{name}: ")
        await form.close()
        return values


def _parse_json(body: bytes, where: str = "") -> Any:
    try:
        return from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise ApiError(400, f"{where}not JSON: {error}") from None


def _too_large(limits: ServerLimits) -> ApiError:
    return ApiError(413, f"a picture may have {limits.upload_bytes:,} bytes at most; make it smaller")


def _sentence(error: ValidationError) -> str:
    """The first thing that is wrong, and where."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = ".".join(str(part) for part in first["loc"] if isinstance(part, int) or part.islower())
    message = first["msg"].removeprefix("Value error, ")
    return f"{json.dumps(place, ensure_ascii=False)[1:-1][:80]}: {message}" if place else message
