"""Faults: GPUs and links that slow down, fail or recover at given times."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

import simpy

from triosim.networks.extensions import ChangeableLinks
from triosim.units import format_time

if TYPE_CHECKING:
    from triosim.conditions.conditions import Conditions, GpuEvent, LinkEvent
    from triosim.conditions.interference import GpuSpeed, GpuSpeeds
    from triosim.networks.base import Network


def schedule_events(conditions: Conditions, network: Network, speeds: GpuSpeeds | None) -> None:
    """Schedule the events of the links of a network, and of the GPUs that have ``speeds``, on the network's clock."""

    def change_gpu(speed: GpuSpeed, event: GpuEvent, _: simpy.Event) -> None:
        speed.set_slowdown(event.slowdown)

    def change_link(event: LinkEvent, _: simpy.Event) -> None:
        assert isinstance(network, ChangeableLinks), "checked before the run"
        network.set_bandwidth(event.source, event.destination, event.bandwidth)
        if event.both:
            network.set_bandwidth(event.destination, event.source, event.bandwidth)

    for gpu in conditions.gpu_events:
        if speeds is not None:
            network.env.timeout(gpu.at).callbacks.append(partial(change_gpu, speeds.of(gpu.rank), gpu))
    for link in conditions.link_events:
        network.env.timeout(link.at).callbacks.append(partial(change_link, link))


def permanent_failures(conditions: Conditions) -> list[str]:
    """Return, in words, the GPUs and links that fail and do not recover."""
    gpus = {event.rank: event for event in conditions.gpu_events}
    links = {(event.source, event.destination): event for event in conditions.link_events}
    failed = [(f"GPU {event.rank}", event.at) for event in gpus.values() if event.slowdown == math.inf]
    failed += [(f"the link {e.source}->{e.destination}", e.at) for e in links.values() if not e.bandwidth]
    return [f"{what} failed at {format_time(at)}" for what, at in failed]
