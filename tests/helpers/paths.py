"""Where the project and the helpers of its tests are."""

import os
import sys
from pathlib import Path

HELPERS = Path(__file__).resolve().parent
ROOT = HELPERS.parents[1]


def importing(test: str) -> dict[str, str]:
    """The environment of another process that imports what a test file (its ``__file__``) has."""
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(test).parent), *sys.path])}
