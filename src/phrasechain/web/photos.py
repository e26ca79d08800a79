"""The photos that clients have sent: their regions, under ids that cannot be guessed, for a while."""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable

from phrasechain.grounding.photo_cache import EncodedPhoto
from phrasechain.web.errors import ApiError


class PhotoStore:
    """The last ``size`` photos, each for ``seconds`` after it was last used.

    Only regions are kept, 60 kB a photo, never pixels. All calls come from the event loop's thread.
    """

    def __init__(self, size: int, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.size, self.seconds, self._clock = size, seconds, clock
        self._kept: OrderedDict[str, tuple[EncodedPhoto, float]] = OrderedDict()  # the longest unused first

    def __len__(self) -> int:
        self._drop_old()
        return len(self._kept)

    def add(self, photo: EncodedPhoto) -> str:
        """Keep a photo; its id."""
        name = secrets.token_urlsafe(18)
        self._kept[name] = (photo.without_photo(), self._clock() + self.seconds)
        self._drop_old()
        return name

    def get(self, name: str) -> EncodedPhoto:
        self._drop_old()
        if name not in self._kept:
            raise ApiError(404, "no photo has this id (any more); send it again to /api/photos")
        photo, _ = self._kept.pop(name)
        self._kept[name] = (photo, self._clock() + self.seconds)
        return photo

    def _drop_old(self) -> None:
        now = self._clock()
        while self._kept:
            name, (_, until) = next(iter(self._kept.items()))
            if len(self._kept) <= self.size and now < until:
                return
            del self._kept[name]
