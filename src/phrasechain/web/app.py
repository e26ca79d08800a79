"""The application: the routes of the API and the files of the page."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.responses import FileResponse, JSONResponse
from starlette.staticfiles import StaticFiles

from phrasechain import __version__
from phrasechain.web.bodies import BodyReader
from phrasechain.web.errors import ApiError
from phrasechain.web.guard import HEALTH, Access, Guard
from phrasechain.web.metrics import CONTENT_TYPE, Metrics
from phrasechain.web.schemas import (
    BatchAnswer,
    BatchRequest,
    ErrorAnswer,
    GroundAnswer,
    GroundRequest,
    PhotoAnswer,
    PhotoRequest,
    PhrasesAnswer,
    PhrasesRequest,
)
from phrasechain.web.service import GroundService

Route = Callable[[Callable[[Request], Awaitable[Response]]], object]

OPENAPI = "/api/openapi.json"
_ERRORS: dict[int | str, dict[str, Any]] = {
    code: {"model": ErrorAnswer, "description": text}
    for code, text in {
        400: "Not JSON, or not a form.",
        401: "The token is missing or wrong.",
        404: "No photo has this id (any more).",
        413: "Too large.",
        415: "Neither JSON nor a form.",
        422: "Something cannot be used; the sentence says what.",
        503: "Too busy; Retry-After says when to try again.",
        504: "It took too long.",
    }.items()
}


def create_app(service: GroundService, access: Access | None = None) -> FastAPI:
    """The application of one service, which whoever made it closes."""
    app = FastAPI(
        title="phrasechain",
        version=__version__,
        description="Finds, for every noun phrase of a caption, the region of a photo that it names.",
        openapi_url=OPENAPI,
        docs_url=None,
        redoc_url=None,
    )
    metrics = Metrics()
    _add_routes(app, service, BodyReader(service.limits))
    _add_state(app, service, metrics)
    _add_page(app)
    app.add_exception_handler(HTTPException, _no_such_route)
    paths = {getattr(route, "path", "") for route in app.routes}
    app.add_middleware(Guard, access=access or Access(), metrics=metrics, paths=paths, seconds=service.limits.seconds)
    return app


def _add_routes(app: FastAPI, service: GroundService, reader: BodyReader) -> None:
    def post(path: str, body: type[BaseModel], answer: type[BaseModel], *, file: bool = True, **more: Any) -> Route:
        return app.post(
            path,
            responses={more.get("status_code", 200): {"model": answer}} | _ERRORS,
            openapi_extra=_body_docs(body, file),
            **more,
        )

    @post("/api/photos", PhotoRequest, PhotoAnswer, status_code=201)
    async def add_photo(request: Request) -> Response:
        """Send a photo and have it encoded, once; its id stands for it in other requests, for a while."""
        body = await reader.read(request, PhotoRequest)
        return JSONResponse(await service.add_photo(body.image), 201)

    @post("/api/ground", GroundRequest, GroundAnswer)
    async def ground(request: Request) -> Response:
        """Ground the phrases of a caption on a photo, by its id or sent along."""
        found = await service.ground(await reader.read(request, GroundRequest))
        return Response(found, media_type="image/png") if isinstance(found, bytes) else JSONResponse(found)

    @post("/api/phrases", PhrasesRequest, PhrasesAnswer, file=False)
    async def phrases(request: Request) -> Response:
        """Find the phrases of a caption, without a photo."""
        return JSONResponse(await service.find_phrases(await reader.read(request, PhrasesRequest)))

    @post("/api/batch", BatchRequest, BatchAnswer)
    async def batch(request: Request) -> Response:
        """Ground many captions on one photo."""
        return JSONResponse(await service.ground_batch(await reader.read(request, BatchRequest)))


def _add_state(app: FastAPI, service: GroundService, metrics: Metrics) -> None:
    @app.get(HEALTH)
    async def health() -> dict[str, str]:
        """Whether the server is there; needs no token."""
        return {"status": "ok", "phrasechain": __version__}

    @app.get("/api/model")
    async def model() -> dict[str, Any]:
        """The model, its decoders and the limits of the server."""
        return service.describe()

    @app.get("/api/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    async def counters() -> Response:
        """Counters in the text format of Prometheus."""
        gauges: dict[str, tuple[float, str]] = {
            "phrasechain_queue_waiting": (service.queue.waiting, "Requests that wait for a thread."),
            "phrasechain_queue_running": (service.queue.running, "Requests that threads work on."),
            "phrasechain_photos": (len(service.photos), "Photos whose regions are kept."),
        }
        return Response(metrics.text(gauges), media_type=CONTENT_TYPE)


def _add_page(app: FastAPI) -> None:
    home = Path(str(files("phrasechain") / "web"))
    for path, name in (("/", "index.html"), ("/docs", "docs.html")):
        app.get(path, include_in_schema=False)(_file(home / "page" / name))
    app.mount("/page", StaticFiles(directory=home / "page"))
    app.mount("/photos", StaticFiles(directory=home / "photos", follow_symlink=True))


def _file(path: Path) -> Callable[[], Any]:
    async def answer() -> FileResponse:
        return FileResponse(path)

    return answer


async def _no_such_route(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    messages = {404: "there is nothing here; /docs lists what there is", 405: "not with this method; /docs says how"}
    raise ApiError(error.status_code, messages.get(error.status_code, str(error.detail)), dict(error.headers or {}))


def _body_docs(model: type[BaseModel], file: bool) -> dict[str, Any]:
    """The two forms of a body for OpenAPI."""
    schema = model.model_json_schema()
    schema = _inlined(schema, schema.pop("$defs", {}))
    content: dict[str, Any] = {"application/json": {"schema": schema}}
    if file:
        form = {**schema, "properties": {**schema["properties"], "image": {"type": "string", "format": "binary"}}}
        for name in ("phrases", "captions"):
            if name in form["properties"]:
                form["properties"][name] = {"type": "string", "description": "As in JSON."}
        form.pop("example", None)
        content["multipart/form-data"] = {"schema": form}
    return {"requestBody": {"required": True, "content": content}}


def _inlined(schema: Any, definitions: dict[str, Any]) -> Any:
    """The schema with its definitions in their places: a request body of its own cannot refer to them."""
    if isinstance(schema, list):
        return [_inlined(each, definitions) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _inlined(definitions[schema["$ref"].rsplit("/", 1)[1]], definitions)
    return {key: _inlined(value, definitions) for key, value in schema.items()}
