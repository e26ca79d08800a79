"""Other people's detectors: the boxes that their own library gives, and one line for what is no detector."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from safetensors.torch import load_file, save_file

from phrasechain.core.errors import DataError
from phrasechain.regions.detectors import COMMON_WORDS, NMS_THRESHOLD, Detector, class_scores, limit_size, load_detector

transformers = pytest.importorskip("transformers")

from tiny_detectors import FAMILIES, QUERIED, WORDS, save_detector  # noqa: E402 - after the skip

PHOTO = Image.fromarray(np.random.default_rng(3).integers(0, 256, (20, 32, 3), np.uint8))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A saved detector of each family."""
    transformers.utils.logging.disable_progress_bar()
    root = tmp_path_factory.mktemp("detectors")
    return {family: save_detector(family, root / family) for family in FAMILIES}


def library_boxes(family: str, folder: Path) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """What the library's own processors make of PHOTO, all boxes of all classes, best first, clipped."""
    auto = transformers.AutoModelForZeroShotObjectDetection if family in QUERIED else None
    model = (auto or transformers.AutoModelForObjectDetection).from_pretrained(folder).eval()
    sizes = [(PHOTO.height, PHOTO.width)]
    if family in QUERIED:
        processor = transformers.AutoProcessor.from_pretrained(folder, backend="pil")
        options = {"do_resize": False} if family == "owlv2" else {}  # its resizing needs scipy; 32 pixels need none
        given = processor(text=[list(WORDS)], images=PHOTO, return_tensors="pt", **options)
        with torch.inference_mode():
            seen = model(**given)
        found = processor.post_process_grounded_object_detection(seen, threshold=0.0, target_sizes=sizes)[0]
    else:
        processor = transformers.AutoImageProcessor.from_pretrained(folder, backend="pil")
        with torch.inference_mode():
            seen = model(**processor(images=PHOTO, return_tensors="pt"))
        found = processor.post_process_object_detection(seen, threshold=0.0, target_sizes=sizes)[0]
    boxes = found["boxes"].clamp(min=0).minimum(torch.tensor([32.0, 20.0, 32.0, 20.0]))
    order = found["scores"].argsort(descending=True, stable=True)
    return boxes[order].numpy(), found["scores"][order].numpy()


def greedy(boxes: NDArray[np.float32]) -> list[int]:
    """Suppression, box by box."""
    kept: list[int] = []
    for n, (x0, y0, x1, y1) in enumerate(boxes.astype(float)):
        area = (x1 - x0) * (y1 - y0)
        overlaps = []
        for a0, b0, a1, b1 in boxes[kept].astype(float):
            common = max(0, min(x1, a1) - max(x0, a0)) * max(0, min(y1, b1) - max(y0, b0))
            overlaps.append(common / (area + (a1 - a0) * (b1 - b0) - common))
        if area > 0 and all(overlap <= NMS_THRESHOLD for overlap in overlaps):
            kept.append(n)
    return kept


@pytest.mark.parametrize("family", FAMILIES)
def test_boxes_are_those_of_the_library(folders: dict[str, Path], family: str) -> None:
    boxes, scores = load_detector(str(folders[family]), WORDS).boxes(PHOTO, 100)
    all_boxes, all_scores = library_boxes(family, folders[family])
    kept = greedy(all_boxes)
    assert len(kept) >= 2
    np.testing.assert_allclose(boxes[: len(kept)], all_boxes[kept], atol=1e-3)
    np.testing.assert_allclose(scores[: len(kept)], all_scores[kept], atol=1e-5)
    if family != "rt_detr":  # of whose boxes the library leaves out some
        assert len(boxes) == len(kept)


@pytest.mark.parametrize("family", FAMILIES)
def test_photos_of_every_shape_give_boxes_within_them(folders: dict[str, Path], family: str) -> None:
    detector = load_detector(f"hf:{folders[family]}", WORDS)
    for height, width in [(1, 1), (3, 3), (3, 70), (2000, 1)]:
        photo = np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)
        boxes, scores = detector.boxes(photo, 3)
        assert len(boxes) == len(scores) <= 3
        assert (boxes >= 0).all()
        assert (boxes <= [width, height, width, height]).all()
        assert (boxes[:, :2] < boxes[:, 2:]).all()
        assert (np.diff(scores) <= 0).all()


def test_boxes_are_in_pixels_of_the_photo_as_displayed(tmp_path: Path, folders: dict[str, Path]) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    path = tmp_path / "a.png"
    PHOTO.transpose(Image.Transpose.ROTATE_90).save(path, exif=exif)
    detector = load_detector(str(folders["yolos"]))
    for turned, upright in zip(detector.boxes(path, 10), detector.boxes(PHOTO, 10), strict=True):
        np.testing.assert_array_equal(turned, upright)


def test_other_words_give_other_scores(folders: dict[str, Path]) -> None:
    for family in QUERIED:
        some, others = (load_detector(str(folders[family]), words).boxes(PHOTO, 5)[1] for words in (WORDS, WORDS[:1]))
        assert some.tolist() != others.tolist()


@dataclass
class Seen:
    """What a detector returns."""

    logits: torch.Tensor
    pred_boxes: torch.Tensor

    def __post_init__(self) -> None:
        self.config = self
        self.num_labels, self.model_type = 1, "known"

    def __call__(self, **_: Any) -> "Seen":
        return self


def known(rows: list[list[float]]) -> Detector:
    """A detector that always gives these rows: logit, normalised centre, width and height."""
    values = torch.tensor(rows)[None]
    return Detector("hf:known", Seen(values[..., :1], values[..., 1:]), lambda *_, **__: {}, {})


def test_boxes_are_cut_at_the_border_and_the_unusable_dropped() -> None:
    nan, inf = float("nan"), float("inf")
    detector = known(
        [
            [0.0, 0.25, 0.25, 0.5, 0.5],
            [nan, 0.7, 0.7, 0.1, 0.1],
            [2.0, 1.0, 0.5, 0.5, 0.5],  # reaches over the right border
            [3.0, 0.5, 0.5, nan, 0.5],
            [4.0, 0.5, 0.5, inf, 0.5],
            [5.0, 1.5, 0.5, 0.5, 0.5],  # outside
            [6.0, 0.5, 0.5, 0.0, 0.5],  # no area
            [1.0, 1.0, 0.5, 0.5, 0.6],  # much the same as the third
        ]
    )
    boxes, scores = detector.boxes(Image.new("RGB", (100, 40)), 10)
    np.testing.assert_allclose(boxes, [[75, 10, 100, 30], [0, 0, 50, 20]], atol=1e-5)
    np.testing.assert_allclose(scores, torch.tensor([2.0, 0.0]).sigmoid())
    assert len(detector.boxes(Image.new("RGB", (100, 40)), 1)[0]) == 1


def test_no_box_at_all() -> None:
    boxes, scores = known([[0.0, 2.0, 2.0, 0.1, 0.1]]).boxes(Image.new("RGB", (8, 8)), 5)
    assert boxes.shape == (0, 4)
    assert scores.shape == (0,)


def test_the_last_of_one_class_too_many_is_nothing() -> None:
    logits = torch.tensor([[2.0, 1.0, 5.0], [0.0, 3.0, -1.0]])
    expected = [logits[0].softmax(0)[0].item(), logits[1].softmax(0)[1].item()]
    assert class_scores(logits, 2, False).tolist() == pytest.approx(expected)
    assert class_scores(logits, 3, False).tolist() == pytest.approx(logits.amax(1).sigmoid().tolist())
    assert class_scores(logits, 2, True).tolist() == pytest.approx(logits.amax(1).sigmoid().tolist())


@pytest.mark.parametrize(
    ("size", "limited"),
    [((640, 480), (640, 480)), ((8000, 4000), (2048, 1024)), ((5000, 1), (2048, 128)), ((3, 90), (6, 90))],
)
def test_only_huge_photos_and_lines_are_changed(size: tuple[int, int], limited: tuple[int, int]) -> None:
    assert limit_size(Image.new("RGB", size)).size == limited


def test_what_fails_on_a_photo_is_one_line() -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("this\nis broken")

    with pytest.raises(DataError, match=r"^hf:x fails on an image of 7 × 5 pixels: this is broken$"):
        Detector("hf:x", Seen(torch.zeros(1, 1, 1), torch.zeros(1, 1, 4)), fail, {}).boxes(Image.new("RGB", (7, 5)), 1)


def test_the_extra_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(DataError, match=r"^hf:some/model needs .* pip install 'phrasechain\[hf\]'$"):
        load_detector("hf:some/model")


def copied(folder: Path, target: Path) -> Path:
    target.mkdir()
    for file in folder.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    return target


def refusal(folder: Path, **options: Any) -> str:
    with pytest.raises(DataError) as error:
        load_detector(str(folder), **options)
    assert "\n" not in str(error.value)
    return str(error.value).removeprefix(f"hf:{folder}")


def test_a_folder_without_a_model(tmp_path: Path) -> None:
    assert refusal(tmp_path).startswith(" cannot be loaded as an object detector: ")


def test_a_model_that_is_no_detector(tmp_path: Path) -> None:
    transformers.BertConfig().save_pretrained(tmp_path)
    assert refusal(tmp_path) == " is not an object detector, but a model of the type 'bert'"


def test_weights_that_could_run_code_are_not_loaded(tmp_path: Path, folders: dict[str, Path]) -> None:
    folder = copied(folders["yolos"], tmp_path / "a")
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    assert "safetensors" in refusal(folder)


def test_code_that_comes_with_a_model_is_not_run(tmp_path: Path, folders: dict[str, Path]) -> None:
    folder = copied(folders["yolos"], tmp_path / "a")
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "mine", "auto_map": {"AutoConfig": "mine.Mine"}}
    (folder / "config.json").write_text(json.dumps(config))
    ran = tmp_path / "ran"
    (folder / "mine.py").write_text(f"from pathlib import Path\nPath({str(ran)!r}).touch()\n")
    assert " cannot be loaded as an object detector: " in refusal(folder)
    assert not ran.exists()


def test_a_detector_without_its_head(tmp_path: Path, folders: dict[str, Path]) -> None:
    folder = copied(folders["detr"], tmp_path / "a")
    weights = load_file(folder / "model.safetensors")
    kept = {name: tensor for name, tensor in weights.items() if not name.startswith("class_labels_classifier")}
    save_file(kept, folder / "model.safetensors", {"format": "pt"})
    assert refusal(folder).startswith(
        " is not a trained model: 2 weights are missing, such as 'class_labels_classifier"
    )


def test_damaged_weights(tmp_path: Path, folders: dict[str, Path]) -> None:
    folder = copied(folders["yolos"], tmp_path / "a")
    (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:-7])
    assert refusal(folder).startswith(" cannot be loaded as an object detector: ")


def test_a_model_without_its_processor(tmp_path: Path, folders: dict[str, Path]) -> None:
    folder = copied(folders["yolos"], tmp_path / "a")
    (folder / "preprocessor_config.json").unlink()
    assert refusal(folder).startswith(" cannot be loaded as an object detector: ")


def test_an_unknown_model_without_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(DataError, match=r"^hf:nobody/nothing@first cannot be loaded as an object detector: [^\n]*$"):
        load_detector("nobody/nothing@first")


@pytest.mark.parametrize("family", sorted(QUERIED))
def test_words_must_fit(folders: dict[str, Path], family: str) -> None:
    assert refusal(folders[family], words=[]) == "an open-vocabulary detector needs at least one word"
    assert "give fewer or shorter ones" in refusal(folders[family], words=[" ".join(["red dog"] * 40)])


def test_the_common_words_are_plain_and_different() -> None:
    assert len(set(COMMON_WORDS)) == len(COMMON_WORDS)
    assert all(word.isalpha() and word.islower() for word in COMMON_WORDS)
    assert 2 * len(COMMON_WORDS) + 2 <= 256  # tokens that Grounding DINO takes, with a full stop after each word


def test_the_settings_of_the_library_stay_as_they_are(folders: dict[str, Path]) -> None:
    logging = transformers.utils.logging
    before = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_info()
    try:
        load_detector(str(folders["yolos"]))
        assert logging.get_verbosity() == logging.INFO
        assert logging.is_progress_bar_enabled() == before[1]
    finally:
        logging.set_verbosity(before[0])
