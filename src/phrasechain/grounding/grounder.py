"""The grounder: a photo and a caption in, a box for every phrase out."""

from __future__ import annotations

import pickle
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, NamedTuple, Self

import torch

from phrasechain.core.errors import DataError, require_name
from phrasechain.core.images import PhotoFile
from phrasechain.core.memory import collector_paused
from phrasechain.core.parallel import in_order, one_thread, survive_forks, usable_cores
from phrasechain.core.schema import GroundedPhrase
from phrasechain.grounding.decoding import DecodeOptions, Look, decode_alone, decode_jointly, score_queries
from phrasechain.grounding.device import find_device, require_usual_torch
from phrasechain.grounding.explore import Details, Exploration, details_of
from phrasechain.grounding.photo_cache import PHOTOS, EncodedPhoto, GivenPhoto, PhotoCache, load_photo
from phrasechain.grounding.pretrained import Pretrained, load_pretrained, push_to_hub, save_pretrained
from phrasechain.grounding.result import PhotoGrounding
from phrasechain.model.batch import GroundQuery
from phrasechain.model.confidence import RankedBoxes
from phrasechain.model.decode import CONSENSUS, DECODERS, INDEPENDENT
from phrasechain.phrases.finder import FoundPhrase
from phrasechain.phrases.given import Given, locate_phrases
from phrasechain.text.tokens import tokenise

GroundImage = GivenPhoto | EncodedPhoto
GroundPair = tuple[GroundImage, str] | tuple[GroundImage, str, Sequence[Given] | None]
GroundingPair = tuple[PhotoGrounding, PhotoGrounding]
OnError = Literal["yield", "raise"]
NOT_ENGLISH = "none of the caption's words is known: captions are read in English; give phrases to ground them anyhow"


class _Prepared(NamedTuple):
    """All of a grounding but the boxes."""

    grounding: PhotoGrounding  # without its phrases
    phrases: Sequence[FoundPhrase] = ()
    query: GroundQuery | None = None  # where there are phrases


class Grounder:
    """Finds, for every phrase of a caption, the box in the photo that it names.

    The regions of recent photos are cached, by content: a second caption costs only the text and the chain. Threads may
    share one grounder; other processes get a copy without those photos.

    Example::

        grounder = Grounder.from_pretrained()
        found = grounder.ground("photo.jpg", "A man in a red shirt throws a frisbee to a dog.")
        for phrase in found.phrases:
            print(phrase.text, phrase.category, phrase.box, phrase.probability)
        found.draw().save("out.png")
    """

    def __init__(self, parts: Pretrained, device: str = "auto", photos: int = PHOTOS) -> None:
        self.parts, self.device = parts, find_device(device)
        self.model = parts.model.to(self.device).eval()
        survive_forks()
        self._photos = PhotoCache(parts.extractor, photos)

    @classmethod
    def from_pretrained(
        cls,
        name_or_folder: str | Path | None = None,
        device: str = "auto",
        *,
        regions: str | Path | None = None,
        finder: str | Path | None = None,
        runtime: str = "torch",
        photos: int = PHOTOS,
        revision: str | None = None,
        cache_dir: str | Path | None = None,
    ) -> Self:
        """A trained grounder.

        Args:
            name_or_folder: a folder that :meth:`save_pretrained` wrote, the folder of a training run, or a hub id
                (OWNER/NAME); by default the embedded one.
            device: ``auto`` (a GPU where there is one), ``cpu``, ``cuda`` or another name of torch; where the model
                runs. The region network runs on the CPU.
            regions, finder: files of another region network or phrase finder than the folder's or the embedded ones.
            runtime: of the region network, ``torch`` or ``onnx`` (faster, needs the extra ``fast``).
            photos: how many photos' regions are cached.
            revision, cache_dir: of the hub: which version, and where downloads are kept.
        """
        require_usual_torch()
        with collector_paused():
            parts = load_pretrained(
                name_or_folder, regions=regions, finder=finder, runtime=runtime, revision=revision, cache_dir=cache_dir
            )
        return cls(parts, device, photos)

    def save_pretrained(self, folder: str | Path, *, force: bool = False) -> None:
        """Write all that :meth:`from_pretrained` needs into a folder: safetensors in float16, and JSON.

        A folder with something in it is refused. With ``force`` the grounder in it is replaced, as a whole.
        """
        save_pretrained(Path(folder), self.parts, force=force)

    def push_to_hub(self, repo_id: str, **options: Any) -> str:
        """Upload to the Hugging Face hub as ``OWNER/NAME``; the address of what was made.

        Options: ``private``, ``revision``, ``commit_message`` and ``token``.
        """
        with TemporaryDirectory() as folder:
            return push_to_hub(self.parts, repo_id, folder=Path(folder) / "grounder", **options)

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy, in this process or another, as one value: torch would send a descriptor for each of its tensors."""
        if self.parts.runtime != "torch":
            raise DataError(
                f"a grounder whose runtime is {self.parts.runtime} cannot be copied or sent to another process; "
                "make one there with from_pretrained, or use torch"
            )
        return _unpacked, (pickle.dumps((type(self), self.parts, str(self.device), self._photos.size)),)

    @property
    def name(self) -> str:
        return self.parts.name

    @property
    def decode(self) -> str:
        """The default decoder."""
        return self.parts.card.decode

    def ground(
        self,
        image: GroundImage,
        caption: str,
        phrases: Sequence[Given] | None = None,
        decode: str | None = None,
        top_k: int = 5,
        min_probability: float | None = None,
    ) -> PhotoGrounding:
        """Ground the phrases of one caption.

        Args:
            image: a path, a PIL image, the bytes of a picture, an open binary file, an H × W × 3 array of uint8, RGB,
                or what :meth:`encode` gave. Boxes are in its pixels as displayed (EXIF orientation applied). A file is
                read once; its bytes stay with the grounding, which draws from them.
            caption: any text; a caption that names nothing gives a grounding without phrases.
            phrases: which phrases, as texts or as (start, end) in code points of the caption; by default those that
                the finder finds.
            decode: ``viterbi``, ``smoothing``, ``independent`` or ``consensus``; by default as the model's folder says.
            top_k: how many alternatives each phrase gets at most.
            min_probability: the least presence of a phrase that counts as found, or the least probability where the
                model knows no presence; by default as the model's folder says.
        """
        options = self._check_options(decode, top_k, min_probability)
        (found,) = self._fill([self._prepare_exactly(image, caption, phrases, options.decode)], options)
        return found

    def compare(
        self,
        image: GroundImage,
        caption: str,
        phrases: Sequence[Given] | None = None,
        decode: str | None = None,
        top_k: int = 5,
        min_probability: float | None = None,
    ) -> GroundingPair:
        """Ground one caption jointly and, by the same decoder, each phrase alone: what the chain changes.

        The arguments are those of :meth:`ground`. The photo is read and the model is run once.
        """
        joint, alone = self._check_both(decode, top_k, min_probability)
        (found,) = self._fill_both([self._prepare_exactly(image, caption, phrases, joint.decode)], joint, alone)
        return found

    def encode(self, image: GivenPhoto) -> EncodedPhoto:
        """Find the regions of a photo once, to ground any number of captions on it, for as long as you keep it."""
        photo = load_photo(image)
        return EncodedPhoto(self._photos.regions(photo), _path(image), photo)

    def explore(
        self,
        image: GroundImage,
        caption: str,
        phrases: Sequence[Given] | None = None,
        decode: str | None = None,
        top_k: int = 5,
        min_probability: float | None = None,
        *,
        k_best: int = 0,
    ) -> Exploration:
        """:meth:`ground`, with more of what the model thinks: all marginals and the ``k_best`` best groundings."""
        options = self._check_options(decode, top_k, min_probability)
        if k_best < 0:
            raise DataError(f"k_best must be 0 or more, not {k_best}")
        seen: list[Details] = []
        (found,) = self._fill(
            [self._prepare_exactly(image, caption, phrases, options.decode)],
            options,
            lambda scores, batch, decoded: seen.append(details_of(scores, batch, decoded, k_best)),
        )
        return Exploration(found, *(seen[0] if seen else Details((), ())))

    def ground_many(
        self,
        pairs: Iterable[GroundPair],
        batch_size: int = 16,
        on_error: OnError = "yield",
        workers: int | None = None,
        decode: str | None = None,
        top_k: int = 5,
        min_probability: float | None = None,
        *,
        keep_photos: bool = False,
    ) -> Iterator[PhotoGrounding]:
        """Ground many captions, in their order; ``pairs`` are (image, caption) or (image, caption, phrases).

        ``workers`` threads, by default one for each core, read photos and find their regions a little ahead (0: the
        calling thread does it); captions go through the model ``batch_size`` at a time. What cannot be grounded is a
        grounding with ``error`` set, or with ``on_error="raise"`` stops all. So that a list of groundings stays small,
        the bytes of a file are dropped: ``draw`` reads it again and refuses one that has changed. ``keep_photos`` keeps
        them with each grounding.
        """
        options = self._check_options(decode, top_k, min_probability)
        prepared = self._prepare_many(pairs, batch_size, on_error, workers, options.decode, keep_photos)
        return (found for some in prepared for found in self._fill(some, options))

    def compare_many(
        self,
        pairs: Iterable[GroundPair],
        batch_size: int = 16,
        on_error: OnError = "yield",
        workers: int | None = None,
        decode: str | None = None,
        top_k: int = 5,
        min_probability: float | None = None,
        *,
        keep_photos: bool = False,
    ) -> Iterator[GroundingPair]:
        """:meth:`compare` for many captions, in their order, with the arguments of :meth:`ground_many`."""
        joint, alone = self._check_both(decode, top_k, min_probability)
        prepared = self._prepare_many(pairs, batch_size, on_error, workers, joint.decode, keep_photos)
        return (found for some in prepared for found in self._fill_both(some, joint, alone))

    def _prepare_many(
        self,
        pairs: Iterable[GroundPair],
        batch_size: int,
        on_error: OnError,
        workers: int | None,
        method: str,
        keep_photos: bool,
    ) -> Iterator[list[_Prepared]]:
        """Read photos and find their regions in threads, ``batch_size`` pairs at a time."""
        workers = usable_cores() if workers is None else workers
        if batch_size < 1 or workers < 0:
            raise DataError(f"the batch size must be 1 or more and the workers 0 or more, not {batch_size}, {workers}")
        require_name("way with errors", on_error, ("yield", "raise"))
        prepare = partial(self._prepare_pair, method=method, on_error=on_error, keep_photo=keep_photos)
        return _in_batches(in_order(prepare, pairs, workers), batch_size)

    def _check_options(self, decode: str | None, top_k: int, min_probability: float | None) -> DecodeOptions:
        """What a caller asks for, checked and with the model's defaults."""
        require_usual_torch()
        method = decode or self.decode
        require_name("decoder", method, DECODERS)
        if top_k < 0:
            raise DataError(f"top_k must be 0 or more, not {top_k}")
        calibration = self.parts.calibration(method)
        least = calibration.threshold if min_probability is None else min_probability
        if not 0 <= least <= 1:
            raise DataError(f"min_probability must be from 0 to 1, not {least}")
        return DecodeOptions(method, top_k, least, calibration)

    def _check_both(
        self, decode: str | None, top_k: int, min_probability: float | None
    ) -> tuple[DecodeOptions, DecodeOptions]:
        """The same for decoding jointly, and for each phrase alone."""
        joint, alone = (self._check_options(method, top_k, min_probability) for method in (decode, INDEPENDENT))
        return joint, alone

    def _prepare(
        self,
        image: GroundImage,
        caption: str,
        phrases: Sequence[Given] | None,
        method: str,
        keep_photo: bool = True,
    ) -> _Prepared:
        tokens = tuple(token.text for token in tokenise(caption))
        if not tokens:
            raise DataError("the caption is empty; give a sentence about the photo")
        finder, hint = self.parts.finder, None
        with one_thread():
            if phrases is not None:
                found = finder.categorise(caption, locate_phrases(caption, phrases))
            elif finder.knows_a_word(caption):
                found = finder.find(caption)
            else:
                found, hint = [], NOT_ENGLISH
        encoded = image if isinstance(image, EncodedPhoto) else self.encode(image)
        regions, photo = encoded.regions, encoded.source
        if isinstance(photo, PhotoFile) and not keep_photo:
            photo = photo.released()
        size = regions.width, regions.height
        empty = PhotoGrounding(encoded.path, *size, caption, self.name, method, hint=hint, source=photo)
        return _Prepared(empty, found, GroundQuery(regions, tokens, found) if found else None)

    def _prepare_exactly(self, *arguments: Any) -> _Prepared:
        """The same in a caller's thread, whose autocast must not round the regions."""
        with torch.autocast("cpu", enabled=False):
            return self._prepare(*arguments)

    def _prepare_pair(self, pair: GroundPair, method: str, on_error: OnError, keep_photo: bool) -> _Prepared:
        try:
            return self._prepare(*_check_pair(pair), method, keep_photo)
        except DataError as error:
            if on_error == "raise":
                raise
            image, caption = (*pair, None, "")[:2] if isinstance(pair, tuple | list) else (None, "")
            shown = caption if isinstance(caption, str) else ""
            return _Prepared(PhotoGrounding(_path(image), 0, 0, shown, self.name, method, error=str(error)))

    def _fill(
        self, prepared: Sequence[_Prepared], options: DecodeOptions, look: Look | None = None
    ) -> Iterator[PhotoGrounding]:
        """The groundings with their phrases; ``look`` sees what they are made from."""
        scored = score_queries(self.model, _queries(prepared), self.device, self.name)
        boxes = (found for each in scored for found in decode_jointly(self.model, *each, options, look))
        yield from _with_phrases(prepared, boxes, options)

    def _fill_both(
        self, prepared: Sequence[_Prepared], joint: DecodeOptions, alone: DecodeOptions
    ) -> Iterator[GroundingPair]:
        """The groundings with their phrases, decoded jointly and alone from the same scores."""
        boxes = [
            each
            for batch, scores in score_queries(self.model, _queries(prepared), self.device, self.name)
            for each in zip(
                decode_jointly(self.model, batch, scores, joint),
                decode_alone(batch, scores, joint.decode, alone),
                strict=True,
            )
        ]
        columns = zip(*boxes, strict=True) if boxes else ((), ())
        first, second = (
            _with_phrases(prepared, iter(column), options)
            for column, options in zip(columns, (joint, alone), strict=True)
        )
        name = f"{INDEPENDENT} {CONSENSUS}" if joint.decode == CONSENSUS else INDEPENDENT
        return zip(first, (replace(grounding, decode=name) for grounding in second), strict=True)


def _unpacked(packed: bytes) -> Grounder:
    kind, *values = pickle.loads(packed)  # of a process that sends us this function to call
    grounder: Grounder = kind(*values)
    return grounder


def _in_batches(prepared: Generator[_Prepared], size: int) -> Iterator[list[_Prepared]]:
    with closing(prepared):
        while some := list(islice(prepared, size)):
            yield some


def _with_phrases(
    prepared: Sequence[_Prepared], boxes: Iterator[RankedBoxes], options: DecodeOptions
) -> Iterator[PhotoGrounding]:
    """The groundings, their phrases with the next boxes."""
    for empty, phrases, _ in prepared:
        yield replace(empty, phrases=tuple(_grounded(phrase, next(boxes), options.least) for phrase in phrases))


def _queries(prepared: Iterable[_Prepared]) -> Iterator[GroundQuery]:
    return (each.query for each in prepared if each.query is not None)


def _check_pair(pair: Any) -> tuple[GroundImage, str, Sequence[Given] | None]:
    if not isinstance(pair, tuple | list) or len(pair) not in (2, 3):
        raise DataError("a pair is (image, caption), or (image, caption, phrases)")
    return pair[0], pair[1], pair[2] if len(pair) == 3 else None


def _grounded(phrase: FoundPhrase, boxes: RankedBoxes, least: float) -> GroundedPhrase:
    is_found = (boxes.probability if boxes.presence is None else boxes.presence) >= least
    return GroundedPhrase(phrase.text, phrase.start, phrase.end, phrase.category, *boxes, is_found)


def _path(source: object) -> str | None:
    if isinstance(source, PhotoFile | EncodedPhoto):
        return source.path
    return str(source) if isinstance(source, str | Path) else None
