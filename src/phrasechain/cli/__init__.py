"""The command line: a module for each kind of user, its functions the commands.

- ``root.py``: the program, its commands in the order of --help, and its errors of one line.
- ``grounding.py``: ground; ``bench.py``: bench.
- ``data.py``: check, import-features, merge-stores; ``regions.py``: train-regions, extract.
- ``models.py``: train, compare, evaluate, import-authors, export; ``finder.py``: train-finder.
- ``counts.py``: what went into a folder or a store, and what did not.

Commands import what they run inside their bodies: --help answers without torch.
"""

from phrasechain.cli.root import app, main

__all__ = ["app", "main"]
