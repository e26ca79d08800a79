"""Imports only go down: a module may import its own layer's lower modules and the layers below, never above."""

import ast
from pathlib import Path

import pytest

import phrasechain

ROOT = Path(phrasechain.__file__).parent
LAYERS = [
    {"schema", "errors", "config", "progress", "files", "terminal", "memory"},
    {"chain", "boxes", "metrics", "draw"},
    {"data", "text", "vision"},
    {"model", "scores", "transitions", "losses", "decode", "certainty", "baselines"},
    {
        "train",
        "evaluate",
        "compare",
        "predict",
        "photo_cache",
        "pretrained",
        "calibrate",
        "export",
        "bench_ground",
        "checkpoint",
        "report",
        "check",
        "check_report",
        "bench",
        "train_data",
        "train_finder",
        "train_notes",
        "train_regions",
        "region_recipe",
        "averages",
        "region_start",
        "resume",
        "run_folder",
        "extract",
        "authors",
        "bench_step",
        "bench_batch",
        "bench_evaluate",
        "batches",
        "build",
        "compare_report",
        "compare_rows",
        "curves",
        "evaluate_run",
        "learner",
        "processes",
        "ground",
        "ground_folder",
    },
    {"cli", "web", "__main__"},
]
LAYER = {name: level for level, names in enumerate(LAYERS) for name in names}
DOORS_ONLY = {"typer", "fastapi", "uvicorn"}
MODULES = sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")


def imported(path: Path) -> set[str]:
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
def test_imports_go_down(path: Path) -> None:
    home = path.relative_to(ROOT).parts[0].removesuffix(".py")
    assert home in LAYER, f"{home} is in no layer: add it to the table"
    for name in imported(path):
        top = name.split(".")
        if top[0] in DOORS_ONLY:
            assert home in LAYERS[-1], f"{path.name} imports {name}"
        if top[0] == "phrasechain" and len(top) > 1 and top[1] in LAYER:
            assert LAYER[top[1]] <= LAYER[home], f"{path.name} (layer {LAYER[home]}) imports {name}"


@pytest.mark.parametrize("path", [p for p in MODULES if "chain" in p.relative_to(ROOT).parts], ids=lambda p: p.name)
def test_the_chain_imports_torch_only(path: Path) -> None:
    import sys

    for name in imported(path):
        top = name.split(".")[0]
        assert top in {"torch", "phrasechain"} or top in sys.stdlib_module_names, f"{path.name} imports {name}"
        assert top != "phrasechain" or name.startswith("phrasechain.chain"), f"{path.name} imports {name}"
