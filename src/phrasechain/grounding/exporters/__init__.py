"""Groundings in other formats: functions of the documented JSON, so that lines of a file can be exported too."""

from collections.abc import Callable
from typing import Any

from phrasechain.grounding.exporters.coco import coco_of
from phrasechain.grounding.exporters.rows import rows_of

#: From the name of a format to what makes it of groundings as ``to_dict`` gives them.
EXPORTERS: dict[str, Callable[..., Any]] = {"coco": coco_of, "rows": rows_of}
