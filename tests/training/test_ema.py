import pytest
import torch
from torch import nn

from phrasechain.training.ema import Ema


def make_module() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))


def test_the_mean_of_all_steps_follows_from_their_shares() -> None:
    module, weights = make_module(), []
    averages = Ema(module)
    for step in range(1, 5):
        with torch.no_grad():
            module[0].weight.add_(step)
        weights.append(module[0].weight.detach().clone())
        averages.follow(1 / step)
    torch.testing.assert_close(averages.values["0.weight"], torch.stack(weights).mean(0))


def test_whole_numbers_are_not_averaged() -> None:
    module = make_module()
    averages = Ema(module)
    module(torch.randn(4, 2))
    averages.follow(0.5)
    assert averages.values["1.num_batches_tracked"] == 1


def test_a_module_has_its_own_state_again_even_after_an_error() -> None:
    module = make_module()
    averages = Ema(module)
    before = averages.values["0.weight"].clone()
    with torch.no_grad():
        module[0].weight.zero_()
    seen = []

    def use() -> None:
        with averages.in_place():
            seen.append(module[0].weight.detach().clone())
            raise KeyError

    with pytest.raises(KeyError):
        use()
    assert torch.equal(seen[0], before)
    assert not module[0].weight.any()


def test_averages_that_were_kept_are_taken_up() -> None:
    one, other = Ema(make_module()), Ema(make_module())
    with torch.no_grad():
        one.module[0].weight.add_(1)
    one.follow(0.5)
    other.load(one.values)
    assert torch.equal(other.values["0.weight"], one.values["0.weight"])
    assert other.values["0.weight"] is not one.values["0.weight"]
