"""Transitions, text encoders and systems of one's own, from a module that the user names.

A plugin is a module with one or more of the dicts below, whose entries are added to ours. It is imported where a user
asks for it, by ``--plugin`` or :func:`load_plugin`, and never because a checkpoint names something of it: a checkpoint
holds no code and runs none.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from phrasechain.baselines.registry import BUILDERS, SYSTEMS, build_of_kind
from phrasechain.core.errors import DataError
from phrasechain.model.build import MAKERS
from phrasechain.model.transitions import TRANSITIONS
from phrasechain.text.encoders import ENCODERS

#: The entry points that ``load_plugin`` knows by name.
GROUP = "phrasechain.plugins"
#: What a plugin may have, and where it goes.
REGISTRIES: dict[str, dict[str, Any]] = {
    "TRANSITIONS": TRANSITIONS,  # name to a class, see ``model/transitions.py``
    "ENCODERS": ENCODERS,  # name to a class, see ``text/base.py``
    "MAKERS": MAKERS,  # name to what makes an encoder from settings and captions, see ``model/build.py``
    "SYSTEMS": SYSTEMS,  # name to what makes a system, see ``baselines/registry.py``
}


def load_plugin(name: str) -> ModuleType:
    """Import a plugin and add what it has. ``name`` is an entry point, a module or a file that ends in ``.py``."""
    module = _import(name)
    found = {kind: getattr(module, kind) for kind in REGISTRIES if isinstance(getattr(module, kind, None), dict)}
    if not any(found.values()):
        raise DataError(f"--plugin {name}: has none of {', '.join(REGISTRIES)}; see docs/extending.md")
    for kind, entries in found.items():
        for key, value in entries.items():
            if REGISTRIES[kind].get(key, value) is not value:
                raise DataError(f"--plugin {name}: {kind} has {key!r}, which is there already; choose another name")
    for kind, entries in found.items():
        REGISTRIES[kind].update(entries)
    BUILDERS.update(dict.fromkeys(found.get("SYSTEMS", ()), build_of_kind))
    for key, encoder in found.get("ENCODERS", {}).items():
        MAKERS.setdefault(key, _maker(encoder))
    return module


def _maker(encoder: Callable[[], Any]) -> Callable[..., Any]:
    """What makes an encoder that has no settings."""
    return lambda text, captions: encoder()


def _import(name: str) -> ModuleType:
    if name.endswith(".py"):
        return _import_file(Path(name))
    for entry in entry_points(group=GROUP, name=name):
        module = entry.load()
        if not isinstance(module, ModuleType):
            raise DataError(f"--plugin {name}: the entry point is {entry.value}, not a module")
        return module
    if "" not in sys.path:
        sys.path.append("")  # modules of the working folder, as with python -m
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # a module that the plugin needs
        raise DataError(
            f"--plugin {name}: no module and no entry point of {GROUP!r} has that name; give a module that can be "
            "imported from here, or its file"
        ) from None
    except (ImportError, TypeError, ValueError) as error:
        if name.isidentifier():
            raise
        raise DataError(f"--plugin {name}: not the name of a module: {error}") from None


def _import_file(path: Path) -> ModuleType:
    """The module of a file, under the name of the file; the same file is imported once."""
    loaded = sys.modules.get(path.stem)
    if loaded is not None:
        if getattr(loaded, "__file__", None) == str(path.resolve()):
            return loaded
        raise DataError(f"--plugin {path}: a module named {path.stem!r} is loaded already; rename the file")
    if not path.is_file():
        raise DataError(f"--plugin {path}: no such file")
    spec = importlib.util.spec_from_file_location(path.stem, path.resolve())
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[path.stem]
        raise
    return module
