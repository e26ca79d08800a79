"""The limits of the server: what it takes, and how much of it at once."""

from __future__ import annotations

from dataclasses import dataclass

CAPTION_LIMIT = 2_000  # code points
PHRASE_LIMIT = 100
CAPTIONS_LIMIT = 64  # of one batch
ALTERNATIVES_LIMIT = 50
K_BEST_LIMIT = 20
_MARGIN = 1 << 16  # bytes of a request beside its picture


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Bounds that keep one client from harming another."""

    upload_bytes: int = 20_000_000  # of a picture's file
    pixels: int = 64_000_000  # of a picture
    photos: int = 256  # whose regions are kept
    photo_seconds: float = 1800.0  # since a photo was last used
    waiting: int = 64  # requests
    seconds: float = 30.0  # for a request, its upload included
    buffered_bytes: int = 256_000_000  # of all requests that are being received

    @property
    def body_bytes(self) -> int:
        """Of a request: base64 makes four bytes of three."""
        return self.upload_bytes * 4 // 3 + _MARGIN
