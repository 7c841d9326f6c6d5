"""The entry point of ``triosim`` and ``python -m triosim``: handles Ctrl-C from the first moment, then runs a command.

Nothing is imported here that Python has not loaded when it starts: while modules load before ``main``, nothing handles Ctrl-C.
"""

from __future__ import annotations

import gc
import sys

TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import NoReturn

#: Objects made before the garbage collector looks for cycles. A run makes many and hardly a cycle; looking every 700 objects,
#: as Python does, costs a start of 0.7 s some 0.05 s.
_OBJECTS_BETWEEN_COLLECTIONS = 100_000


def main() -> NoReturn:
    """Run the command line, and exit."""
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS, 20, 20)
    try:
        status = __import__("triosim.cli", fromlist=("run",)).run()
        if "triton" in sys.modules:
            gc.unfreeze()  # it complains of objects that nobody frees before Python ends
        else:
            gc.freeze()  # nobody needs the memory of a run that is over: looking for its cycles takes up to 2 s
    except KeyboardInterrupt:  # while the command line itself was being imported, or after its end
        print("triosim: interrupted", file=sys.stderr)
        status = 130
    sys.exit(status)


if __name__ == "__main__":
    main()
