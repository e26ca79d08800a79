"""Models of Hugging Face's transformers (the extra ``hf``): safetensors weights alone, and no remote code."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from phrasechain.core.errors import DataError, one_line


def import_transformers(who: str) -> Any:
    """The library, which ``who`` needs."""
    try:
        import transformers
    except ImportError:
        raise DataError(f"{who} needs transformers: pip install 'phrasechain[hf]'") from None
    return transformers


def source_of(name: str) -> tuple[str, dict[str, Any]]:
    """A hub id, ``ID@REVISION`` or a folder as arguments of ``from_pretrained``."""
    source, _, revision = (name, "", "") if Path(name).is_dir() else name.partition("@")
    return source, {"revision": revision or "main", "trust_remote_code": False}


def load_model(family: Any, source: str, name: str, unused: str | None = None, **options: Any) -> Any:
    """A trained model of a family such as ``AutoModel``; weights whose names hold ``unused`` may be missing."""
    described = import_transformers(name).AutoConfig.from_pretrained(source, **options)
    if "/" in str(getattr(described, "_attn_implementation", "")):  # a name of code on the hub
        raise DataError(f"{name} asks for code of the hub to compute its attention; choose another model")
    options |= {"use_safetensors": True, "dtype": torch.float32, "output_loading_info": True}
    model, report = family.from_pretrained(source, **options)
    names = {key for key, _ in model.named_parameters() if unused is None or unused not in key}
    if missing := sorted(names.intersection(report["missing_keys"])):
        raise DataError(f"{name} is not a trained model: {len(missing)} weights are missing, such as {missing[0]!r}")
    return model


@contextmanager
def loading(name: str, what: str) -> Iterator[None]:
    """Say in one line why a model cannot be loaded as ``what``.

    The library's own warnings are silenced, and its bars where there is no terminal.
    """
    logging = import_transformers(name).utils.logging
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    if bars and not sys.stderr.isatty():
        logging.disable_progress_bar()
    try:
        yield
    except DataError:
        raise
    except Exception as error:  # no network, no such model, other weights, a library that it needs …
        raise DataError(f"{name} cannot be loaded as {what}: {one_line(error)}") from None
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
