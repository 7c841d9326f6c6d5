"""``python -m triosim`` and ``triosim``: the command line, from the first moment on which Ctrl-C may come."""

from __future__ import annotations

import sys
from typing import NoReturn


def main() -> NoReturn:
    """Run the command line, and exit."""
    try:
        from triosim.cli import run

        status = run()
    except KeyboardInterrupt:  # while the command line itself was being imported
        print("triosim: interrupted", file=sys.stderr)
        status = 130
    sys.exit(status)


if __name__ == "__main__":
    main()
