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
from phrasechain.core.parallel import in_order, survive_forks, usable_cores
from phrasechain.core.schema import GroundedPhrase
from phrasechain.grounding.photo_cache import PHOTOS, PhotoCache, load_photo
from phrasechain.grounding.pretrained import Pretrained, load_pretrained, push_to_hub, save_pretrained
from phrasechain.grounding.result import PhotoGrounding
from phrasechain.model.batch import GroundQuery, collate
from phrasechain.model.confidence import RankedBoxes, rank_boxes
from phrasechain.model.decode import DECODERS
from phrasechain.phrases.finder import FoundPhrase
from phrasechain.phrases.given import Given, locate_phrases
from phrasechain.regions.pixels import ImageSource
from phrasechain.text.tokens import tokenise

GroundPair = tuple[ImageSource, str] | tuple[ImageSource, str, Sequence[Given] | None]
OnError = Literal["yield", "raise"]
_MOST_STEPS = 512  # B·T of the chains that are computed at once: a long caption would pad the others


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
        self.parts, self.device = parts, _device(device)
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
        image: ImageSource,
        caption: str,
        phrases: Sequence[Given] | None = None,
        decode: str | None = None,
        top_k: int = 5,
    ) -> PhotoGrounding:
        """Ground the phrases of one caption.

        Args:
            image: a path, a PIL image, or an H × W × 3 array of uint8, RGB. Boxes are in its pixels as displayed (EXIF
                orientation applied). The file of a path is read once; its bytes stay with the grounding, which draws
                from them.
            caption: any text; a caption that names nothing gives a grounding without phrases.
            phrases: which phrases, as texts or as (start, end) in code points of the caption; by default those that
                the finder finds.
            decode: ``viterbi``, ``smoothing``, ``independent`` or ``consensus``; by default as the model's folder says.
            top_k: how many alternatives each phrase gets at most.
        """
        method = self._check_options(decode, top_k)
        with torch.autocast("cpu", enabled=False):
            prepared = self._prepare(image, caption, phrases, method)
        (found,) = self._fill([prepared], method, top_k)
        return found

    def ground_many(
        self,
        pairs: Iterable[GroundPair],
        batch_size: int = 16,
        on_error: OnError = "yield",
        workers: int | None = None,
        decode: str | None = None,
        top_k: int = 5,
        *,
        keep_photos: bool = False,
    ) -> Iterator[PhotoGrounding]:
        """Ground many captions, in their order; ``pairs`` are (image, caption) or (image, caption, phrases).

        ``workers`` threads, by default one for each core, read photos and find their regions a little ahead; captions
        go through the model ``batch_size`` at a time. What cannot be grounded is a grounding with ``error`` set, or
        with ``on_error="raise"`` stops all. So that a list of groundings stays small, the bytes of a file are dropped:
        ``draw`` reads it again and refuses one that has changed. ``keep_photos`` keeps them with each grounding.
        """
        method = self._check_options(decode, top_k)
        workers = usable_cores() if workers is None else workers
        if batch_size < 1 or workers < 1:
            raise DataError(f"the batch size and the workers must be 1 or more, not {batch_size} and {workers}")
        require_name("way with errors", on_error, ("yield", "raise"))
        prepare = partial(self._prepare_pair, method=method, on_error=on_error, keep_photo=keep_photos)
        return self._ground_many(in_order(prepare, pairs, workers), batch_size, method, top_k)

    def _ground_many(
        self, prepared: Generator[_Prepared], batch_size: int, method: str, top_k: int
    ) -> Iterator[PhotoGrounding]:
        with closing(prepared):
            while some := list(islice(prepared, batch_size)):
                yield from self._fill(some, method, top_k)

    def _check_options(self, decode: str | None, top_k: int) -> str:
        """The decoding method, checked."""
        require_usual_torch()
        method = decode or self.decode
        require_name("decoder", method, DECODERS)
        if top_k < 0:
            raise DataError(f"top_k must be 0 or more, not {top_k}")
        return method

    def _prepare(
        self,
        image: ImageSource,
        caption: str,
        phrases: Sequence[Given] | None,
        method: str,
        keep_photo: bool = True,
    ) -> _Prepared:
        tokens = tuple(token.text for token in tokenise(caption))
        if not tokens:
            raise DataError("the caption is empty; give a sentence about the photo")
        finder = self.parts.finder
        found = (
            finder.find(caption) if phrases is None else finder.categorise(caption, locate_phrases(caption, phrases))
        )
        photo = load_photo(image)
        regions = self._photos.regions(photo)
        if isinstance(photo, PhotoFile) and not keep_photo:
            photo = photo.released()
        empty = PhotoGrounding(_path(image), regions.width, regions.height, caption, self.name, method, source=photo)
        return _Prepared(empty, found, GroundQuery(regions, tokens, found) if found else None)

    def _prepare_pair(self, pair: GroundPair, method: str, on_error: OnError, keep_photo: bool) -> _Prepared:
        try:
            return self._prepare(*_check_pair(pair), method, keep_photo)
        except DataError as error:
            if on_error == "raise":
                raise
            image, caption = (*pair, None, "")[:2] if isinstance(pair, tuple | list) else (None, "")
            shown = caption if isinstance(caption, str) else ""
            return _Prepared(PhotoGrounding(_path(image), 0, 0, shown, self.name, method, error=str(error)))

    def _fill(self, prepared: Sequence[_Prepared], method: str, top_k: int) -> Iterator[PhotoGrounding]:
        """The groundings with their phrases."""
        groups = _groups(each.query for each in prepared if each.query is not None)
        boxes = (found for group in groups for found in self._decode(group, method, top_k))
        for empty, phrases, _ in prepared:
            yield replace(empty, phrases=tuple(_grounded(phrase, next(boxes)) for phrase in phrases))

    @torch.inference_mode()
    def _decode(self, queries: Sequence[GroundQuery], method: str, top_k: int) -> list[RankedBoxes]:
        """The boxes of all phrases of the queries, one after the other."""
        with torch.autocast(self.device.type, enabled=False):
            batch = collate(queries).to(self.device)
            scores = self.model(batch)
            if not bool(scores.emissions.isfinite().all()):
                raise DataError(f"{self.name}: its scores are not finite; its weights are broken")
            return rank_boxes(scores, self.model.decode(scores, batch, method), self.parts.calibration(method), top_k)


def _unpacked(packed: bytes) -> Grounder:
    kind, *values = pickle.loads(packed)  # of a process that sends us this function to call
    grounder: Grounder = kind(*values)
    return grounder


def require_usual_torch() -> None:
    """Refuse other defaults of torch than those that models are written for."""
    if torch.get_default_dtype() != torch.float32:
        raise DataError(
            f"torch's default dtype is {torch.get_default_dtype()}; a grounder needs torch.set_default_dtype("
            "torch.float32)"
        )
    if torch.get_default_device().type != "cpu":
        raise DataError(
            f"torch's default device is {torch.get_default_device()}; a grounder needs torch.set_default_device("
            '"cpu"), and takes its own as Grounder.from_pretrained(device=...)'
        )


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise DataError(f"device {name}: torch finds no GPU here; install a CUDA build of torch, or use cpu")
    try:
        torch.ones(1, device=name).cpu()  # torch knows names of devices that are not there
    except (RuntimeError, AssertionError):
        raise DataError(f"no device named {name!r} here; there are: auto, cpu, cuda") from None
    return torch.device(name)


def _check_pair(pair: Any) -> tuple[ImageSource, str, Sequence[Given] | None]:
    if not isinstance(pair, tuple | list) or len(pair) not in (2, 3):
        raise DataError("a pair is (image, caption), or (image, caption, phrases)")
    return pair[0], pair[1], pair[2] if len(pair) == 3 else None


def _groups(queries: Iterable[GroundQuery]) -> Iterator[list[GroundQuery]]:
    """Captions that go through the model together, in their order."""
    group: list[GroundQuery] = []
    for query in queries:
        longest = max(len(each.phrases) for each in (*group, query))
        if group and longest * (len(group) + 1) > _MOST_STEPS:
            yield group
            group = []
        group.append(query)
    if group:
        yield group


def _grounded(phrase: FoundPhrase, found: RankedBoxes) -> GroundedPhrase:
    return GroundedPhrase(phrase.text, phrase.start, phrase.end, phrase.category, *found)


def _path(source: object) -> str | None:
    return str(source) if isinstance(source, str | Path | PhotoFile) else None
