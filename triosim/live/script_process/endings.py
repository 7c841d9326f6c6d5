"""How a script of a live run ends: what is shown of its error, as Python would show it, and its exit status."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from triosim.errors import SimulationError, TriosimError
from triosim.live.items import Said
from triosim.live.job import INTERRUPTED
from triosim.live.script_process.task_feed import TaskFeed
from triosim.tracer.fake_device import FakeDevice
from triosim.tracer.script_runner import EnoughSteps, show_error, uncaptured
from triosim.tracer.stand_ins import finder as stand_ins
from triosim.tracer.surroundings import write_protection
from triosim.tracer.surroundings.file_overlay import FileOverlay

#: What Python raises where code is wrong: in a frame of ours it is our mistake, and not the script's.
_MISTAKES = (AttributeError, TypeError, LookupError, AssertionError, NameError, RecursionError)
_ROOT = str(Path(__file__).resolve().parents[2])
_TRACER = str(Path(sys.modules[FakeDevice.__module__].__file__ or "").resolve().parent)


def status_of(error: BaseException, files: FileOverlay | None, feed: TaskFeed) -> int:
    """Show the error that a script ended with, if it is one, and return the exit status.

    ``files`` are what it wrote into; by the ``feed`` an error of ours is shown once for all ranks.
    """
    if isinstance(error, EnoughSteps):
        return 0
    if isinstance(error, SystemExit):
        return _status_of_exit(error)
    if isinstance(error, TriosimError):
        return _refused(error, feed)
    if files is not None and (full := write_protection.full_disk(error, files)) is not None:
        return _refused(SimulationError(full), feed)
    if _is_ours(error):
        sys.excepthook(type(error), error, error.__traceback__)
        print("triosim: internal error, not the script's; please report it with this traceback", file=sys.stderr)
    elif (found := uncaptured(error)) is not None:
        error.__cause__ = error.__context__ = None  # PyTorch's search for a kernel
        show_error(error, (_ROOT,))
        return _refused(SimulationError(found[0], fix=found[1]), feed)
    else:
        show_error(error, (_ROOT,))
        for why in _advice(error, files):
            print(f"triosim: note: {why}", file=sys.stderr)
    return INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1


def _status_of_exit(left: SystemExit) -> int:
    """Return the status of ``sys.exit``, which shows a text that it is given."""
    if left.code is None or isinstance(left.code, int):
        return (left.code or 0) & 0xFF
    print(left.code, file=sys.stderr)
    return 1


def _refused(error: TriosimError, feed: TaskFeed) -> int:
    """Show an error of ours in one line, and return its status."""
    sys.stderr.flush()
    feed.say(Said("error", f"triosim: error: {error}\n".encode()))
    return error.exit_status


def _is_ours(error: BaseException) -> bool:
    """Whether an error is a mistake of triosim: Python raised it in a line of ours."""
    entry = error.__traceback__
    while entry is not None and entry.tb_next is not None:
        entry = entry.tb_next
    file = "" if entry is None else entry.tb_frame.f_code.co_filename
    return isinstance(error, _MISTAKES) and file.startswith((_ROOT, _TRACER))


def _advice(error: BaseException, files: FileOverlay | None) -> Iterator[str]:
    """Yield why triosim made a script end with an error of its own, and what would help."""
    for why in (None if files is None else write_protection.refusal(error), stand_ins.missing(error)):
        if why is not None:
            yield why
