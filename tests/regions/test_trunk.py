import pytest
import torch

from phrasechain.regions.trunk import LITE0, SHAPES, Block, Trunk
from published import BLOCKS_OF


def test_the_shapes_are_those_of_the_published_weights() -> None:
    assert LITE0.channels == (40, 112, 320)
    for name, shape in SHAPES.items():
        assert [stage.channels for _, stage in shape.places()] == [out for _, out, *_ in BLOCKS_OF[name]]
        assert [stage.kernel for _, stage in shape.places()] == [kernel for _, _, kernel, *_ in BLOCKS_OF[name]]


def test_drop_path_is_random_and_for_training_alone() -> None:
    torch.manual_seed(0)
    trunk = Trunk()
    trunk.set_drop_path(0.2)
    assert [block.drop_path for block in trunk.blocks()] == pytest.approx([0.2 * place / 16 for place in range(1, 17)])
    block = trunk.blocks()[-2]  # the last one that adds
    x = torch.rand(400, 192, 2, 2)
    with torch.no_grad():
        whole = block.eval()(x)
        learnt = block.train()(x)
    is_dropped = (learnt == x).flatten(1).all(1)
    assert 0.1 < float(is_dropped.float().mean()) < 0.3  # the last but one: 0.1875
    scaled = x + (whole - x) / (1 - block.drop_path)
    torch.testing.assert_close(learnt[~is_dropped], scaled[~is_dropped])


def test_only_a_depthwise_convolution_with_stride_and_gradient_stays_in_float32() -> None:
    x = torch.rand(1, 24, 8, 8)
    for stride, learns, expected in ((1, True, torch.bfloat16), (2, True, torch.float32), (2, False, torch.bfloat16)):
        block, seen = Block(24, 24, 3, stride, expansion=1), x.clone().requires_grad_(learns)
        with torch.autocast("cpu", torch.bfloat16):
            found = block._depthwise(seen)
        assert found.dtype == expected
        torch.testing.assert_close(found.float(), block.filter(x), atol=0.02, rtol=0.02)
