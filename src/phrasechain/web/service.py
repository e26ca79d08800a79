"""What the API does, without HTTP: a grounder behind a queue, and the photos that clients have sent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from phrasechain import __version__
from phrasechain.core.errors import DataError
from phrasechain.core.images import PhotoFile, encode_png, opened
from phrasechain.core.parallel import usable_cores
from phrasechain.core.schema import CATEGORIES
from phrasechain.grounding.explore import Exploration
from phrasechain.grounding.exporters import EXPORTERS
from phrasechain.grounding.grounder import Grounder
from phrasechain.grounding.photo_cache import EncodedPhoto
from phrasechain.grounding.result import FORMAT_VERSION, PhotoGrounding
from phrasechain.model.decode import DECODERS
from phrasechain.phrases.given import Given, locate_phrases
from phrasechain.web.errors import ApiError
from phrasechain.web.photos import PhotoStore
from phrasechain.web.schemas import BatchCaption, BatchRequest, GroundRequest, PhrasesRequest
from phrasechain.web.settings import ServerLimits
from phrasechain.web.work_queue import WorkQueue


class _Asked(NamedTuple):
    """A caption on a photo."""

    photo: EncodedPhoto
    caption: str
    phrases: Sequence[Given] | None


@dataclass(frozen=True, slots=True)
class _Options:
    """How captions are grounded; those with the same options are grounded together."""

    decode: str | None
    top_k: int


class GroundService:
    """Grounds captions for many clients at once.

    Threads work one core each. A photo that is encoded while nothing else is done gets all of them.
    """

    def __init__(self, grounder: Grounder, limits: ServerLimits | None = None, workers: int | None = None) -> None:
        self.grounder, self.limits = grounder, limits or ServerLimits()
        self.cores = workers or usable_cores()
        self.queue = WorkQueue(self.cores, self.limits.waiting)
        self.photos = PhotoStore(self.limits.photos, self.limits.photo_seconds)

    def close(self) -> None:
        self.queue.close()

    async def add_photo(self, image: bytes) -> dict[str, Any]:
        """Encode a picture and keep its regions."""
        photo = await self.queue.run(self._encode, image)
        return {
            "photo": self.photos.add(photo),
            "width": photo.regions.width,
            "height": photo.regions.height,
            "seconds": self.limits.photo_seconds,
        }

    async def find_phrases(self, request: PhrasesRequest) -> dict[str, Any]:
        """The phrases of a caption, or the given ones with their categories."""
        phrases = await self.queue.run(self._find, request)
        return {"version": FORMAT_VERSION, "caption": request.caption, "phrases": phrases}

    async def ground(self, request: GroundRequest) -> Any:
        """The grounding of a caption in the format that was asked for: plain containers, or the bytes of a picture."""
        photo = await self._photo(request.photo, request.image)
        asked, options = _Asked(photo, request.caption, request.phrases), _Options(request.decode, request.top_k)
        if request.marginals or request.k_best:
            found = await self.queue.run(self._explore, (asked, options, request))
        else:
            grounding = await self.queue.run(self._ground_together, (asked, options), options)
            if grounding.error is not None:
                raise DataError(grounding.error)
            found = Exploration(grounding)
        found = found.at_least(request.min_probability)
        if request.format == "png":
            return await self.queue.run(_draw, found.grounding)
        record = found.to_dict()
        return record if request.format == "json" else EXPORTERS[request.format]([record])

    async def ground_batch(self, request: BatchRequest) -> dict[str, Any]:
        """A grounding for each caption; where one fails, it says so."""
        photo, options = await self._photo(request.photo, request.image), _Options(request.decode, request.top_k)
        captions = [BatchCaption(caption=each) if isinstance(each, str) else each for each in request.captions]
        asked = [_Asked(photo, each.caption, each.phrases) for each in captions]
        found = await self.queue.run(self._ground_all, (asked, options))
        records = [Exploration(each).at_least(request.min_probability).to_dict() for each in found]
        return {"version": FORMAT_VERSION, "groundings": records}

    def describe(self) -> dict[str, Any]:
        """The model and the limits."""
        return {
            "model": self.grounder.name,
            "phrasechain": __version__,
            "version": FORMAT_VERSION,
            "decode": self.grounder.decode,
            "decoders": list(DECODERS),
            "categories": list(CATEGORIES),
            "limits": {
                "upload_bytes": self.limits.upload_bytes,
                "pixels": self.limits.pixels,
                "photos": self.limits.photos,
                "photo_seconds": self.limits.photo_seconds,
                "seconds": self.limits.seconds,
            },
        }

    async def _photo(self, name: str | None, image: bytes | None) -> EncodedPhoto:
        if image is not None:
            return await self.queue.run(self._encode, image)
        return self.photos.get(name or "")

    # ---- in the threads of the queue; each takes a batch ----

    def _encode(self, images: Sequence[bytes]) -> list[EncodedPhoto]:
        (image,) = images
        photo = PhotoFile.from_memory(image)
        with opened(photo) as header:
            pixels = header.width * header.height
        if pixels > self.limits.pixels:
            raise ApiError(413, f"a picture may have {self.limits.pixels:,} pixels at most; make it smaller")
        torch.set_num_threads(self.cores if self.queue.running == 1 else 1)
        try:
            return [self.grounder.encode(photo)]
        finally:
            torch.set_num_threads(1)

    def _find(self, requests: Sequence[PhrasesRequest]) -> list[list[dict[str, Any]]]:
        return [self._phrases(request.caption, request.phrases) for request in requests]

    def _phrases(self, caption: str, given: Sequence[Given] | None) -> list[dict[str, Any]]:
        finder = self.grounder.parts.finder
        found = finder.find(caption) if given is None else finder.categorise(caption, locate_phrases(caption, given))
        return [
            {"text": phrase.text, "start": phrase.start, "end": phrase.end, "category": phrase.category}
            for phrase in found
        ]

    def _explore(self, jobs: Sequence[tuple[_Asked, _Options, GroundRequest]]) -> list[Exploration]:
        ((asked, options, request),) = jobs
        found = self.grounder.explore(*asked, options.decode, options.top_k, k_best=request.k_best)
        return [found if request.marginals else found.without_marginals()]

    def _ground_together(self, jobs: Sequence[tuple[_Asked, _Options]]) -> list[PhotoGrounding]:
        return self._ground([asked for asked, _ in jobs], jobs[0][1])

    def _ground_all(self, jobs: Sequence[tuple[list[_Asked], _Options]]) -> list[list[PhotoGrounding]]:
        return [self._ground(asked, options) for asked, options in jobs]

    def _ground(self, asked: Sequence[_Asked], options: _Options) -> list[PhotoGrounding]:
        many = self.grounder.ground_many(asked, workers=0, decode=options.decode, top_k=options.top_k, keep_photos=True)
        return list(many)


def _draw(groundings: Sequence[PhotoGrounding]) -> list[bytes]:
    return [encode_png(grounding.draw(probabilities=True)) for grounding in groundings]
