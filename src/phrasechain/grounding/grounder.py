"""The grounder: a photo and a caption in, a box for every phrase out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, Self

import torch
from PIL import Image

from phrasechain.core.errors import DataError, unknown_name
from phrasechain.core.parallel import in_order, usable_cores
from phrasechain.core.schema import GroundedPhrase, Grounding
from phrasechain.draw import draw_grounding
from phrasechain.grounding.photo_cache import PHOTOS, PhotoCache
from phrasechain.grounding.pretrained import Pretrained, load_pretrained, push_to_hub, save_pretrained
from phrasechain.model.batch import GroundQuery, collate
from phrasechain.model.confidence import Answer, answers_of
from phrasechain.model.decode import DECODERS
from phrasechain.model.decode import decode as choose
from phrasechain.phrases.finder import FoundPhrase
from phrasechain.phrases.given import Given, locate_phrases
from phrasechain.regions.pixels import ImageSource, read_rgb
from phrasechain.text.tokens import tokenise

GroundPair = tuple[ImageSource, str] | tuple[ImageSource, str, Sequence[Given] | None]
OnError = Literal["yield", "raise"]
_MOST_STEPS = 512  # B·T of the chains that are computed at once: a long caption would pad the others


@dataclass(frozen=True, slots=True)
class PhotoGrounding(Grounding):
    """A grounding that knows the photo it was made on, and can be drawn."""

    source: ImageSource | None = field(default=None, repr=False, compare=False)

    def draw(self, *, probabilities: bool = False, alternatives: int = 0) -> Image.Image:
        """The photo with its boxes and the caption below; see :func:`phrasechain.draw.draw_grounding`."""
        if self.error is not None or self.source is None:
            raise DataError(f"nothing to draw: {self.error or 'the photo is not known'}")
        return draw_grounding(read_rgb(self.source), self, probabilities=probabilities, alternatives=alternatives)


@dataclass(frozen=True, slots=True)
class PhotoQuery(GroundQuery):
    """A query about a photo, with what its answer will tell of both."""

    source: ImageSource | None = None
    text: str = ""
    phrases: Sequence[FoundPhrase] = ()


class Grounder:
    """Finds, for every phrase of a caption, the box in the photo that it names.

    The regions of the last photos are kept, by content: a second caption costs only the text and the chain. Several
    threads may share one grounder; other processes get a copy without those photos.

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
        self._photos = PhotoCache.of(parts.extractor, photos)

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
        """A grounder that has learnt.

        Args:
            name_or_folder: a folder that :meth:`save_pretrained` wrote, the folder of a training run, or a hub id
                (OWNER/NAME); by default the embedded one.
            device: ``auto`` (a GPU where there is one), ``cpu``, ``cuda`` or another name of torch; where the model
                runs. The region network runs on the CPU.
            regions, finder: files of another region network or phrase finder than the folder's or the embedded ones.
            runtime: of the region network, ``torch`` or ``onnx`` (faster, needs the extra ``fast``).
            photos: how many photos' regions are kept.
            revision, cache_dir: of the hub: which version, and where downloads are kept.
        """
        parts = load_pretrained(
            name_or_folder, regions=regions, finder=finder, runtime=runtime, revision=revision, cache_dir=cache_dir
        )
        return cls(parts, device, photos)

    def save_pretrained(self, folder: str | Path) -> None:
        """Write all that :meth:`from_pretrained` needs into a folder: safetensors in float16, and JSON."""
        save_pretrained(Path(folder), self.parts)

    def push_to_hub(self, repo_id: str, **options: Any) -> str:
        """Upload to the Hugging Face hub as ``OWNER/NAME``; the address of what was made.

        Options: ``private``, ``revision``, ``commit_message`` and ``token``.
        """
        with TemporaryDirectory() as folder:
            return push_to_hub(self.parts, repo_id, folder=Path(folder) / "grounder", **options)

    def __getstate__(self) -> dict[str, Any]:
        if self.parts.runtime != "torch":
            raise DataError(
                f"a grounder whose runtime is {self.parts.runtime} cannot be copied or sent to another process; "
                "make one there with from_pretrained, or use torch"
            )
        return self.__dict__

    @property
    def name(self) -> str:
        return self.parts.name

    @property
    def decode(self) -> str:
        """The way of decoding where none is asked for."""
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
                orientation applied).
            caption: any text; a caption that names nothing gives a grounding without phrases.
            phrases: which phrases, as texts or as (start, end) in code points of the caption; by default those that
                the finder finds.
            decode: ``viterbi``, ``smoothing``, ``independent`` or ``consensus``; by default as the model's folder says.
            top_k: how many other boxes each phrase gets at most.
        """
        how = self._checked(decode, top_k)
        question = self._ask(image, caption, phrases)
        (found,) = self._answer([question], how, top_k)
        return found

    def ground_many(
        self,
        pairs: Iterable[GroundPair],
        batch_size: int = 16,
        on_error: OnError = "yield",
        workers: int | None = None,
        decode: str | None = None,
        top_k: int = 5,
    ) -> Iterator[PhotoGrounding]:
        """Ground many captions, in their order; ``pairs`` are (image, caption) or (image, caption, phrases).

        ``workers`` threads, by default one for each core, read photos and find their regions a little ahead; captions
        go through the model ``batch_size`` at a time. What cannot be grounded is a grounding with ``error`` set, or
        with ``on_error="raise"`` stops all.
        """
        how = self._checked(decode, top_k)
        workers = usable_cores() if workers is None else workers
        if batch_size < 1 or workers < 1:
            raise DataError(f"the batch size and the workers must be 1 or more, not {batch_size} and {workers}")
        if on_error not in ("yield", "raise"):
            raise DataError(unknown_name("way with errors", on_error, ("yield", "raise")))
        return self._ground_many(pairs, batch_size, on_error, workers, how, top_k)

    def _ground_many(
        self, pairs: Iterable[GroundPair], batch_size: int, on_error: OnError, workers: int, how: str, top_k: int
    ) -> Iterator[PhotoGrounding]:
        def ask(pair: GroundPair) -> PhotoQuery | PhotoGrounding:
            try:
                return self._ask(*_checked_pair(pair))
            except DataError as error:
                if on_error == "raise":
                    raise
                return self._failure(pair, how, error)

        with closing(in_order(ask, pairs, workers)) as asked:
            while some := list(islice(asked, batch_size)):
                questions = [each for each in some if isinstance(each, PhotoQuery)]
                answers = iter(self._answer(questions, how, top_k))
                for each in some:
                    yield next(answers) if isinstance(each, PhotoQuery) else each

    def _checked(self, decode: str | None, top_k: int) -> str:
        how = decode or self.decode
        if how not in DECODERS:
            raise DataError(unknown_name("decoder", how, DECODERS))
        if top_k < 0:
            raise DataError(f"top_k must be 0 or more, not {top_k}")
        return how

    def _ask(self, image: ImageSource, caption: str, phrases: Sequence[Given] | None) -> PhotoQuery:
        tokens = tuple(token.text for token in tokenise(caption))
        if not tokens:
            raise DataError("the caption is empty; give a sentence about the photo")
        finder = self.parts.finder
        found = (
            finder.find(caption) if phrases is None else finder.categorise(caption, locate_phrases(caption, phrases))
        )
        return PhotoQuery(self._photos.regions(image), tokens, found, source=image, text=caption)

    def _answer(self, questions: Sequence[PhotoQuery], how: str, top_k: int) -> list[PhotoGrounding]:
        answers: list[list[Answer]] = [[] for _ in questions]
        asked = [place for place, question in enumerate(questions) if question.phrases]
        for places in _groups(asked, [len(question.phrases) for question in questions]):
            found = iter(self._choose([questions[place] for place in places], how, top_k))
            for place in places:
                answers[place] = list(islice(found, len(questions[place].phrases)))
        return [self._grounding(*pair, how) for pair in zip(questions, answers, strict=True)]

    @torch.inference_mode()
    def _choose(self, questions: Sequence[PhotoQuery], how: str, top_k: int) -> list[Answer]:
        """The boxes of all phrases of captions that have some, one after the other."""
        batch = collate(questions).to(self.device)
        scores = self.model(batch)
        if not bool(scores.emissions.isfinite().all()):
            raise DataError(f"{self.name}: its scores are not finite; its weights are broken")
        decoded = choose(scores, batch, how)
        return answers_of(scores, decoded, self.parts.calibration(how), top_k)

    def _grounding(self, question: PhotoQuery, answers: Sequence[Answer], how: str) -> PhotoGrounding:
        regions, pairs = question.regions, zip(question.phrases, answers, strict=True)
        return PhotoGrounding(
            _path(question.source),
            regions.width,
            regions.height,
            question.text,
            self.name,
            how,
            tuple(_grounded(phrase, *answer) for phrase, answer in pairs),
            source=question.source,
        )

    def _failure(self, pair: Any, how: str, error: DataError) -> PhotoGrounding:
        image, caption = (*pair, None, "")[:2] if isinstance(pair, tuple | list) else (None, "")
        shown = caption if isinstance(caption, str) else ""
        return PhotoGrounding(_path(image), 0, 0, shown, self.name, how, error=str(error))


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


def _checked_pair(pair: Any) -> tuple[ImageSource, str, Sequence[Given] | None]:
    if not isinstance(pair, tuple | list) or len(pair) not in (2, 3):
        raise DataError("a pair is (image, caption), or (image, caption, phrases)")
    return pair[0], pair[1], pair[2] if len(pair) == 3 else None


def _groups(places: Sequence[int], phrases: Sequence[int]) -> Iterator[list[int]]:
    """Captions that go through the model together, in their order."""
    group: list[int] = []
    for place in places:
        longest = max(phrases[each] for each in (*group, place))
        if group and longest * (len(group) + 1) > _MOST_STEPS:
            yield group
            group = []
        group.append(place)
    if group:
        yield group


def _grounded(phrase: FoundPhrase, chosen: Any, others: Any) -> GroundedPhrase:
    return GroundedPhrase(
        phrase.text, phrase.start, phrase.end, phrase.category, chosen.box, chosen.probability, others
    )


def _path(source: object) -> str | None:
    return str(source) if isinstance(source, str | Path) else None
