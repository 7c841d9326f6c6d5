"""SimPy events for networks: callbacks at a given time, and callbacks on an event that a plug-in returned."""

from __future__ import annotations

from collections.abc import Callable, Generator

import simpy
from simpy.events import EventPriority

from triosim.errors import PluginError
from triosim.plugins import FOR_TRACEBACK, label, line_in_plugin

NORMAL = EventPriority(1)
AFTER_ALL = EventPriority(2)  # after everything else of the same instant
MOST_SHOWN = 40  # characters of a wrong value


def call_at(
    env: simpy.Environment, time: float, callback: Callable[[simpy.Event], None], priority: EventPriority = NORMAL
) -> simpy.Event:
    """Call back at a time; return the event, which a callback gets."""
    event = simpy.Event(env)
    event._ok = True
    event._value = None
    event.callbacks.append(callback)
    env.schedule(event, priority, max(time - env.now, 0.0))
    return event


def when(event: simpy.Event, callback: Callable[[simpy.Event], object], network: object) -> None:
    """Call back once an event that a network returned has happened, at once if it already has.

    Raises ``PluginError`` for what is not an event, and when the event fails.
    """
    if not isinstance(event, simpy.Event):
        said = repr(event) if len(repr(event)) <= MOST_SHOWN else f"a {type(event).__name__}"
        fix = "return a SimPy event, such as self.env.timeout(seconds)"
        if isinstance(event, Generator):
            said, fix = f"a generator from {event.__name__}", "return self.env.process(...) of it"
        raise PluginError(f"the network returned {said}, which is not an event", where=label(network), fix=fix)

    def happened(_: simpy.Event) -> None:
        if not event.ok:
            where = line_in_plugin(event.value) or label(network)
            raise PluginError(f"the network failed: {event.value!r}", where=where, fix=FOR_TRACEBACK)
        callback(event)

    if event.callbacks is None:
        happened(event)
    else:
        event.callbacks.append(happened)
