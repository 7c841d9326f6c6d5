"""SimPy events for networks: callbacks at a given time, and callbacks on an event that a plug-in returned."""

from __future__ import annotations

from collections.abc import Callable

import simpy
from simpy.events import EventPriority

from triosim.errors import PluginError

NORMAL = EventPriority(1)
AFTER_ALL = EventPriority(2)  # after everything else of the same instant


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


def when(event: simpy.Event, callback: Callable[[simpy.Event], object]) -> None:
    """Call back once an event that a network returned has happened, at once if it already has.

    Raises ``PluginError`` for what is no event, and when the event fails.
    """
    if not isinstance(event, simpy.Event):
        raise PluginError(
            f"the network returned {event!r:.40}", fix="return a SimPy event from transfer and collective"
        )

    def happened(_: simpy.Event) -> None:
        if not event.ok:
            raise PluginError(f"the network failed: {event.value!r}")
        callback(event)

    if event.callbacks is None:
        happened(event)
    else:
        event.callbacks.append(happened)
