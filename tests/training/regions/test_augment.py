import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from phrasechain.training.regions.augment import crop, random_view, random_window, render_view, view_targets
from phrasechain.training.regions.vocabulary import RegionTargets, Vocabulary

WORDS = Vocabulary(("left", "right", "dog"))
LESSON = RegionTargets(
    boxes=torch.tensor([[0.1, 0.1, 0.4, 0.4], [0.6, 0.6, 0.9, 0.9], [0.0, 0.0, 1.0, 1.0]]),
    words=((0, 2), (1,)),
    phrases=((0, (2,)), (1, (1,)), (0, (0, 2))),
)


def test_a_crop_moves_boxes_and_forgets_those_it_cuts() -> None:
    part = crop(LESSON, (0.0, 0.0, 0.5, 0.5))
    torch.testing.assert_close(part.boxes, torch.tensor([[0.2, 0.2, 0.8, 0.8]]))
    assert part.words == ((0, 2),)
    assert part.phrases == ((0, (2,)), (0, (0, 2)))
    other = crop(LESSON, (0.5, 0.5, 1.0, 1.0))  # the second box becomes the first
    assert other.words == ((1,),)
    assert other.phrases == ((0, (1,)),)


def test_the_whole_photo_is_no_crop() -> None:
    whole = crop(LESSON, (0.0, 0.0, 1.0, 1.0))
    assert torch.equal(whole.boxes, LESSON.boxes)
    assert (whole.words, whole.phrases) == (LESSON.words, LESSON.phrases)


@given(st.integers(0, 10_000))
def test_a_side_is_within_the_photo_or_holds_all_of_it(seed: int) -> None:
    x0, y0, x1, y1 = random_window(np.random.default_rng(seed))
    for start, end in ((x0, x1), (y0, y1)):
        assert 0.5 - 1e-9 <= end - start <= 1.4 + 1e-9
        assert (start >= 0 and end <= 1) or (start <= 0 and end >= 1)


@given(st.integers(0, 10_000))
def test_boxes_follow_the_pixels(seed: int) -> None:
    """A red rectangle in a dark photo is where its box says, in whatever view."""
    pixels = np.zeros((120, 160, 3), np.uint8)
    pixels[24:60, 32:96, 0] = 255
    targets = RegionTargets(torch.tensor([[0.2, 0.2, 0.6, 0.5]]), ((2,),), ((0, (2,)),))
    view = random_view(np.random.default_rng(seed))
    seen = view_targets(targets, view, WORDS)
    if not len(seen.boxes):  # the view cuts it too much
        return
    view_pixels = render_view(Image.fromarray(pixels), view, 64)
    redness = view_pixels[:, :, 0].astype(int) - view_pixels[:, :, 1]
    rows, columns = np.nonzero(redness > redness.max() / 2)
    found = torch.tensor([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]) / 64
    torch.testing.assert_close(found.float(), seen.boxes[0], atol=0.04, rtol=0)


def test_views_follow_from_the_seed() -> None:
    image = Image.effect_noise((80, 60), 50).convert("RGB")
    one, other, third = (render_view(image, random_view(np.random.default_rng(seed)), 32) for seed in (1, 1, 2))
    assert np.array_equal(one, other)
    assert not np.array_equal(one, third)


def test_colours_keep_their_hue() -> None:
    red = Image.new("RGB", (40, 40), (200, 40, 40))
    for seed in range(20):
        view = render_view(red, random_view(np.random.default_rng(seed)), 16)
        assert (view[..., 1] == view[..., 2]).all()
        assert (view[..., 0].astype(int) > view[..., 1])[4:12, 4:12].all()  # beyond the photo all is grey


def test_a_view_of_more_than_the_photo_is_grey_beyond_it() -> None:
    white = Image.new("RGB", (40, 40), (255, 255, 255))
    views = [render_view(white, random_view(np.random.default_rng(seed)), 16) for seed in range(20)]
    assert any(view.min() < 0.7 * view.max() for view in views)
    assert all((view == view[..., :1]).all() for view in views)
