"""The command line: one file a command."""

from triosim.cli.main import app, run

__all__ = ["app", "run"]
