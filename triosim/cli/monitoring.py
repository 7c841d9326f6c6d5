"""The options ``--monitor`` and ``--monitor-port``, of the commands that may run for long."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from triosim.cli.command import LaterModule
from triosim.errors import OptionError

if TYPE_CHECKING:
    from triosim.engine import Progress

server = LaterModule("monitor.server")
watched_run = LaterModule("monitor.watched_run")
watched_search = LaterModule("monitor.watched_search")


@contextmanager
def monitored(progress: Progress, given: Mapping[str, Any]) -> Iterator[Progress]:
    """Yield what a run tells of its progress; with ``--monitor``, a page shows the run meanwhile."""
    check_monitor(given)
    if not given["monitor"]:
        yield progress
        return
    watched = watched_run.WatchedRun(progress)
    with server.served(watched.state, watched.actions, given["monitor_port"] or 0):
        yield watched


@contextmanager
def monitored_search(given: Mapping[str, Any]) -> Iterator[Callable[..., None]]:
    """Yield what a search tells of itself; with ``--monitor``, a page shows it meanwhile."""
    check_monitor(given)
    if not given["monitor"]:
        yield lambda *_: None
        return
    watched = watched_search.WatchedSearch()
    with server.served(watched.state, watched.actions, given["monitor_port"] or 0):
        yield watched.told


def check_monitor(given: Mapping[str, Any]) -> None:
    """Raise ``OptionError`` for a port without a page."""
    if given["monitor_port"] is not None and not given["monitor"]:
        raise OptionError("has no effect without --monitor", where="--monitor-port", fix="add --monitor")
