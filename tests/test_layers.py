"""The packages stand in an order, and each imports only itself and those before it."""

import ast
import sys
from pathlib import Path

import pytest

import phrasechain

ROOT = Path(phrasechain.__file__).parent
# fmt: off
ORDER = (
    "core", "chain", "draw", "data", "store", "text", "phrases", "regions", "model", "baselines", "evaluation",
    "grounding", "training", "bench", "web", "cli",
)
# fmt: on
DOORS_ONLY = {"typer", "fastapi", "uvicorn", "starlette", "pydantic"}
MODULES = sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")


def imported(path: Path) -> set[str]:
    """The names of all modules that a file imports, also those that it imports within functions."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names.add(node.module or "")
            names |= {f"{node.module}.{alias.name}" for alias in node.names if node.module == "phrasechain"}
    return names


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_import_goes_up(path: Path) -> None:
    home = path.relative_to(ROOT).parts[0]
    if home == "__main__.py":
        return
    assert home in ORDER, (
        f"{path.relative_to(ROOT)} is in no package of the list; only __init__ and __main__ lie outside"
    )
    for name in sorted(imported(path)):
        top, *rest = name.split(".")
        if top in DOORS_ONLY:
            assert home in ("cli", "web"), f"{path.relative_to(ROOT)} imports {name}: only cli/ and web/ may"
        if top == "phrasechain" and rest and rest[0] != "__version__":
            allowed = ORDER[: ORDER.index(home) + 1]
            where = path.relative_to(ROOT)
            assert rest[0] in allowed, f"{where} imports {name}, which goes up: it may import {', '.join(allowed)}"


@pytest.mark.parametrize("path", [p for p in MODULES if "chain" in p.relative_to(ROOT).parts], ids=lambda p: p.name)
def test_the_chain_imports_torch_only(path: Path) -> None:
    for name in imported(path):
        top = name.split(".")[0]
        assert top in {"torch", "phrasechain"} or top in sys.stdlib_module_names, f"{path.name} imports {name}"
        assert top != "phrasechain" or name.startswith("phrasechain.chain"), f"{path.name} imports {name}"
