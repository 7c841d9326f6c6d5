"""What a run recorded, as values: its timeline, the loads of its links, and a rank's memory over time.

The page draws it, and ``--record`` keeps it in ``result.json``, from which the page can be drawn later.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from triosim.networks.extensions import LinkRecorder
from triosim.reports.page.link_slots import link_slots
from triosim.reports.page.memory_curve import curve_of_fullest
from triosim.reports.page.timeline_slices import timeline_slices
from triosim.results.result import Result


def recorded(result: Result) -> dict[str, Any]:
    """Return what a result that was just simulated knows beside its figures; None for what was not recorded."""
    recording, network = result.recording, result.network
    has_handles = recording is not None and recording.handles is not None
    has_links = recording is not None and isinstance(network, LinkRecorder) and network.record and bool(network.rates)
    return {
        "timeline": timeline_slices(recording) if has_handles and recording is not None else None,
        "link_loads": link_slots(result) if has_links else None,
        "memory_curve": curve_of_fullest(result.memory) if result.memory is not None else None,
    }


def with_recorded(result: Result) -> Result:
    """Return a result that keeps what its run recorded, also in a file."""
    return replace(result, data=replace(result.data, recorded=recorded(result)))
