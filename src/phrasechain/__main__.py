"""The program: an interrupt while its modules are still being imported is told as any other."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line."""
    try:
        from phrasechain.cli import main as run

        run()
    except KeyboardInterrupt:
        print("phrasechain: interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
