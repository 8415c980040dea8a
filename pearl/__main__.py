"""The command `pearl`, also as `python -m pearl`, where its script is not on the path."""

from __future__ import annotations

import signal
import sys


def main() -> None:
    """Entry point of the `pearl` command; an interrupt that comes before there is one to catch it is a line, too."""
    try:
        from pearl.cli.main import main as command
    except KeyboardInterrupt:
        sys.stderr.write("error: interrupted\n")
        sys.exit(128 + signal.SIGINT)
    command()


if __name__ == "__main__":
    main()
