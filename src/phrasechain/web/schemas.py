"""What the API takes, checked at the door, and what it answers, for its documentation."""

from __future__ import annotations

import binascii
from base64 import b64decode
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, WithJsonSchema, model_validator

from phrasechain.web.settings import ALTERNATIVES_LIMIT, CAPTION_LIMIT, CAPTIONS_LIMIT, K_BEST_LIMIT, PHRASE_LIMIT


def _picture(value: Any) -> Any:
    """A picture's bytes: JSON has them in base64, a form as they are."""
    if not isinstance(value, str):
        return value
    try:
        return b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("not base64; send a picture's bytes in base64, or the file in a form") from None


Picture = Annotated[bytes, BeforeValidator(_picture), WithJsonSchema({"type": "string", "format": "byte"})]
CaptionText = Annotated[str, StringConstraints(min_length=1, max_length=CAPTION_LIMIT)]
GivenPhrase = CaptionText | tuple[int, int]
Phrases = Annotated[
    list[GivenPhrase] | None,
    Field(
        min_length=1,
        max_length=PHRASE_LIMIT,
        description="Which phrases: texts, or [start, end] in code points of the caption. Without it they are found.",
    ),
]
Decode = Annotated[
    Literal["viterbi", "smoothing", "independent", "consensus"] | None,
    Field(description="How boxes are decided; by default as the model likes best."),
]
Format = Literal["json", "coco", "rows", "png"]

EXAMPLE_CAPTION = "A man in a black coat looks through a camera"


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid")


class PhrasesRequest(_Request):
    """A caption."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": {"caption": EXAMPLE_CAPTION}})

    caption: CaptionText
    phrases: Phrases = None


class PhotoRequest(_Request):
    """A picture in base64; as a form, a file."""

    image: Picture = Field(description="A picture's file in base64; in a form, the file itself.")


class _OnPhoto(_Request):
    """A photo by its id or itself, and how to ground captions on it."""

    photo: Annotated[str, StringConstraints(max_length=64)] | None = Field(None, description="An id of /api/photos.")
    image: Picture | None = Field(None, description="Instead, a picture's file in base64; in a form, the file.")
    decode: Decode = None
    top_k: int = Field(5, ge=0, le=ALTERNATIVES_LIMIT, description="The most alternatives that a phrase gets.")
    min_probability: float = Field(
        0.0, ge=0, le=1, allow_inf_nan=False, description="Boxes that are less probable are left out."
    )

    @model_validator(mode="after")
    def _one_photo(self) -> _OnPhoto:
        if (self.photo is None) == (self.image is None):
            raise ValueError("give either photo, an id of /api/photos, or image, the picture itself")
        return self


class GroundRequest(_OnPhoto):
    """A caption on a photo."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"example": {"photo": "PHOTO_ID", "caption": EXAMPLE_CAPTION}}
    )

    caption: CaptionText
    phrases: Phrases = None
    k_best: int = Field(0, ge=0, le=K_BEST_LIMIT, description="How many of the best groundings that differ to tell.")
    marginals: bool = Field(False, description="Tell for each phrase how probable each region is.")
    format: Format = Field("json", description="json, coco, rows, or png: the picture, for which the photo is sent.")

    @model_validator(mode="after")
    def _png_needs_pixels(self) -> GroundRequest:
        if self.format == "png" and self.image is None:
            raise ValueError("for format png send image, the picture itself: an id keeps no pixels")
        return self


class BatchCaption(_Request):
    """One caption of many."""

    caption: CaptionText
    phrases: Phrases = None


class BatchRequest(_OnPhoto):
    """Many captions on one photo."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"example": {"photo": "PHOTO_ID", "captions": [EXAMPLE_CAPTION, "a tripod in a field"]}},
    )

    captions: list[CaptionText | BatchCaption] = Field(min_length=1, max_length=CAPTIONS_LIMIT)


# ---- answers, as the documentation shows them ----

Sides = Annotated[list[float], Field(min_length=4, max_length=4, description="x0, y0, x1, y1 in pixels")]


class FoundPhrase(BaseModel):
    """A phrase of a caption."""

    text: str
    start: int
    end: int
    category: str


class BoxAnswer(BaseModel):
    """A box and its probability."""

    box: Sides
    probability: float


class PhraseAnswer(FoundPhrase, BoxAnswer):
    """A phrase and what it names. More keys may come with time."""

    model_config = ConfigDict(extra="allow")

    alternatives: list[BoxAnswer]
    marginals: list[BoxAnswer] | None = Field(None, description="Where they were asked for: regions.")


class RankedAnswer(BaseModel):
    """One of the best groundings: a box for each phrase, and the probability of just these regions."""

    boxes: list[Sides]
    probability: float


class GroundAnswer(BaseModel):
    """A grounding, as ``Grounding.to_dict`` has it."""

    model_config = ConfigDict(extra="allow")

    version: int
    image: dict[str, Any]
    caption: str
    model: str
    decode: str
    phrases: list[PhraseAnswer]
    k_best: list[RankedAnswer] | None = None
    error: str | None = None


class BatchAnswer(BaseModel):
    """A grounding for each caption, in order; where one failed, it has ``error``."""

    version: int
    groundings: list[GroundAnswer]


class PhrasesAnswer(BaseModel):
    """The phrases of a caption."""

    version: int
    caption: str
    phrases: list[FoundPhrase]


class PhotoAnswer(BaseModel):
    """A photo that can be grounded on by its id."""

    photo: str = Field(description="Its id, which nobody can guess.")
    width: int
    height: int
    seconds: float = Field(description="How long it is kept after it was last used.")


class ErrorAnswer(BaseModel):
    """What went wrong, in a sentence."""

    error: str
