"""``python -m triosim`` is the command line."""

from triosim.cli import main

main()
