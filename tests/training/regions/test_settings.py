import pytest

from phrasechain.core.errors import DataError
from phrasechain.core.settings import make_settings
from phrasechain.training.regions.settings import RegionSettings, check_settings


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("train.precision=bf61", "no precision named 'bf61'; there are: float32, bf16"),
        ("train.drop_path=1", r"train\.drop_path is from 0 to 0\.99, not 1\.0"),
        ("network.size=65", r"network\.size is a multiple of 32, not 65"),
        ("train.epochs=0", r"train\.epochs is 1 or more, not 0"),
        ("train.deeper=3", r"no key named 'train\.deeper'; there are: train\.epochs"),
    ],
)
def test_what_is_no_setting(text: str, message: str) -> None:
    check_settings(RegionSettings())
    with pytest.raises(DataError, match=message):
        check_settings(make_settings(RegionSettings(), texts=[text]))
