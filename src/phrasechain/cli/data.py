"""Commands for datasets and imported features: ``check``, ``import-features`` and ``merge-stores``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from phrasechain.cli.common import print_counts
from phrasechain.core.files import json_bytes, require_writable, write_output
from phrasechain.core.terminal import printable


def check(
    data: Annotated[Path, typer.Argument(metavar="DATA", help="A folder in the official layout, or a .jsonl file.")],
    features: Annotated[
        Path | None, typer.Option(metavar="STORE", help="Region features: also report how well they cover the phrases.")
    ] = None,
    figure: Annotated[
        Path | None, typer.Option(metavar="PNG", help="Draw the histograms of the paper's Figure 2 into this file.")
    ] = None,
    json_path: Annotated[Path | None, typer.Option("--json", metavar="PATH", help="Write all figures as JSON.")] = None,
) -> None:
    """Report what a dataset contains, and what is missing or broken.

    Exit status: 0 usable, 1 not usable, 2 cannot be opened.
    """
    from rich.console import Console

    from phrasechain.evaluation.check import check_dataset
    from phrasechain.evaluation.check_report import check_dict, draw_figure, print_check

    require_writable(figure, json_path)
    report = check_dataset(data, features)
    if figure:
        write_output(figure, draw_figure(report.splits, report.coverages))
    if json_path:
        write_output(json_path, json_bytes(check_dict(report)))
    print_check(report, Console())
    if not report.is_usable:
        raise typer.Exit(1)


def import_features(
    files: Annotated[list[Path], typer.Argument(metavar="FILE…", help="Feature files, or a folder of npz files.")],
    out: Annotated[Path, typer.Option("--out", metavar="STORE", help="The store to write, or to resume.")],
    format: Annotated[str, typer.Option("--format", help="auto, tsv, ban or ddpn.")] = "auto",
    dtype: Annotated[str, typer.Option("--dtype", help="float16 or float32.")] = "float16",
    ids: Annotated[
        list[Path] | None,
        typer.Option("--ids", metavar="PICKLE", help="BAN's image ids, one for each file [NAME_imgid2idx.pkl]."),
    ] = None,
    on_error: Annotated[str, typer.Option("--on-error", help="What to do with a broken image: stop or skip.")] = "stop",
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Only the first N images.")] = None,
    extractor: Annotated[
        str, typer.Option("--extractor", help="A name for the extractor of the features.")
    ] = "bottom-up-attention",
) -> None:
    """Convert region features (bottom-up-attention TSV, BAN HDF5, DDPN npz) to a store.

    Run it again to resume after an interruption. Exit status: 0 all imported, 1 some images skipped, 2 stopped.
    """
    from phrasechain.store.importers.features import import_features as run

    report = run(
        files, out, format=format, dtype=dtype, ids=ids or (), on_error=on_error, limit=limit, extractor=extractor
    )
    counts = {
        "written": report.written,
        "already there": report.already_there,
        "duplicates (first kept)": report.duplicates,
        "broken, skipped": report.skipped,
    }
    print_counts("images", out, counts, report.problems)


def merge_stores(
    stores: Annotated[list[Path], typer.Argument(metavar="STORE…", help="Finished stores with no image in common.")],
    out: Annotated[Path, typer.Option("--out", metavar="STORE", help="The store to write, or to resume.")],
) -> None:
    """Merge the stores that several machines wrote (--shard) into one."""
    from phrasechain.store.writer import merge_stores as run

    typer.echo(f"{printable(str(out))}: {run(stores, out):,} images")
