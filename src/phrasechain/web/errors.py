"""What the API answers where it cannot do what was asked: a status, and a sentence that helps."""

from __future__ import annotations

BUSY_SECONDS = 1  # after which a client may try again


class ApiError(Exception):
    """An answer other than the one that was asked for."""

    def __init__(self, status: int, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.headers = status, message, headers or {}


def busy(what: str) -> ApiError:
    """The answer while there is too much to do."""
    return ApiError(503, f"{what}; try again in a moment", {"Retry-After": str(BUSY_SECONDS)})
