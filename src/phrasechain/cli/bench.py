"""Benchmarks: ``bench``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from phrasechain.core.errors import require_name
from phrasechain.core.files import json_bytes, require_writable, write_output

BENCHMARKS = ("chain", "step", "ground")


def bench(
    what: Annotated[str, typer.Argument(metavar="[chain|step|ground]", help="What to measure.")] = "chain",
    seconds: Annotated[float, typer.Option(min=0.0, help="How long to measure each size.")] = 4.0,
    memory: Annotated[bool, typer.Option(help="Measure peak memory too.")] = True,
    growth: Annotated[bool, typer.Option(help="step: also with more regions, phrases and captions.")] = True,
    model: Annotated[
        str | None, typer.Option(metavar="FOLDER|HUB_ID", help="ground: another model than the embedded one.")
    ] = None,
    json_path: Annotated[Path | None, typer.Option("--json", metavar="PATH", help="Write all figures as JSON.")] = None,
) -> None:
    """Measure speed and memory as ratios to named peers and a lower bound, in one run."""
    from rich.console import Console

    require_writable(json_path)
    require_name("benchmark", what, BENCHMARKS)
    results: dict[str, Any]
    show: Callable[[dict[str, Any], Console], None]
    if what == "chain":
        from phrasechain.bench.chain import bench_chain, print_chain

        results, show = bench_chain(seconds=seconds, memory=memory), print_chain
    elif what == "ground":
        from phrasechain.bench.ground import bench_ground, print_ground

        results, show = bench_ground(model, seconds=seconds), print_ground
    else:
        from phrasechain.bench.step import bench_step, print_step

        results, show = bench_step(seconds=seconds, memory=memory, growth=growth), print_step
    if json_path:
        write_output(json_path, json_bytes(results))
    show(results, Console())
