"""What happens to GPUs and links at a time: they degrade, fail or recover."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

import simpy

from triosim.units import format_time

if TYPE_CHECKING:
    from triosim.conditions.conditions import Conditions, GpuEvent, LinkEvent
    from triosim.conditions.interference import Pace
    from triosim.networks.base import Network


def let_happen(conditions: Conditions, network: Network, paces: Mapping[int, Pace]) -> None:
    """Have the clock bring about what is to happen to the GPUs of ``paces``, by rank, and to the links of a network."""

    def change_gpu(event: GpuEvent, _: simpy.Event) -> None:
        paces[event.rank].slow_down(event.slowdown)

    def change_link(event: LinkEvent, _: simpy.Event) -> None:
        network.set_bandwidth(event.source, event.destination, event.bandwidth)
        if event.both:
            network.set_bandwidth(event.destination, event.source, event.bandwidth)

    for gpu in conditions.gpu_events:
        if gpu.rank in paces:
            network.env.timeout(gpu.at).callbacks.append(partial(change_gpu, gpu))
    for link in conditions.link_events:
        network.env.timeout(link.at).callbacks.append(partial(change_link, link))


def failures(conditions: Conditions) -> list[str]:
    """Return, in words, what has failed and does not come back."""
    gpus = {event.rank: event for event in conditions.gpu_events}
    links = {(event.source, event.destination): event for event in conditions.link_events}
    return [
        *(f"GPU {e.rank} failed at {format_time(e.at)}" for e in gpus.values() if e.slowdown == math.inf),
        *(
            f"the link {e.source}->{e.destination} failed at {format_time(e.at)}"
            for e in links.values()
            if not e.bandwidth
        ),
    ]
