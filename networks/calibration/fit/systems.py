"""Finds the system that a row of a table of measured collectives was measured on: a preset, its nodes and its network cards.

Tables write systems and cards as people do: 'H100-SXM5-80GB (Nebius)', '8x400 Gb/s InfiniBand NDR', '4x100 Gb/s EFA'.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from triosim.errors import TriosimError
from triosim.networks.calibration.fit.measured import gpu_of
from triosim.networks.topology import Topology
from triosim.networks.topology.presets import GB, PRESETS
from triosim.networks.topology.shapes import NetworkName, Wire

#: The preset of a system, by words of its name (lower case, with single spaces between words), and the bandwidth of its links
#: where it differs from the preset's. The first that fits.
SYSTEMS: tuple[tuple[str, str, float | None], ...] = (
    (r"gb300.*nvl ?(36|72)", "gb300-nvl72", None),
    (r"gb200.*nvl ?(36|72)", "gb200-nvl72", None),
    (r"gb300", "gb300-nvl4", None),
    (r"gb200", "gb200-nvl4", None),
    (r"b300", "dgx-b300", None),
    (r"b[12]00", "dgx-b200", None),
    (r"gb10|dgx spark", "gb10", None),
    (r"gh200|grace hopper", "gh200", None),
    (r"h200 (nvl|pcie)", "h100-nvl2", 450 * GB),
    (r"h100 (\d+ ?gb )?(nvl|pcie).*(nvlink|bridge)|h100 (\d+ ?gb )?nvl", "h100-nvl2", None),
    (r"h[18]00.*pcie", "h100-pcie", None),
    (r"h200", "dgx-h200", None),
    (r"h800", "dgx-h100", 200 * GB),
    (r"h100|hopper", "dgx-h100", None),
    (r"\bh20\b", "dgx-h20", None),
    (r"a[18]00.*pcie|\ba30\b", "a100-pcie", None),
    (r"a800", "dgx-a100", 200 * GB),
    (r"a100", "dgx-a100", None),
    (r"v100 sxm3|dgx 2\b", "dgx-2", None),
    (r"v100.*pcie", "a100-pcie", 12.5 * GB),
    (r"v100", "dgx-1-v100", None),
    (r"mi35[05]x", "mi300x", 76.8 * GB),
    (r"mi3(00|08|25)x?", "mi300x", None),
    (r"rtx pro \d{4}", "rtx-pro-6000-pcie", None),
    (r"\b50[6-9]0", "rtx-5090-pcie", None),
    (r"\b[34]0[6-9]0|6000 ada", "rtx-4090-pcie", None),
    (r"l40s?\b|\bl20\b", "l40s-pcie", None),
    (r"\bl4\b", "l4-pcie", None),
    (r"\ba40\b|a6000|a5000", "a40-pcie", None),
    (r"\ba10g?\b", "a10g-pcie", None),
    (r"\bt4\b|\bg4dn\b", "t4-pcie", None),
    # Instances of AWS, where they are not said to have one of these GPUs.
    (r"\bp4de?\b", "dgx-a100", None),
    (r"\bp5\b", "dgx-h100", None),
    (r"\bp5en?\b", "dgx-h200", None),
    (r"\bg5\b", "a10g-pcie", None),
    (r"\bg6\b", "l4-pcie", None),
    (r"\bg6e\b", "l40s-pcie", None),
)

#: The preset of the same GPUs with larger nodes.
LARGER = {
    "gb200-nvl4": "gb200-nvl72",
    "gb300-nvl4": "gb300-nvl72",
    "h100-nvl2": "h100-pcie",
    "v100-nvl4": "dgx-1-v100",
    "dgx-1-v100": "dgx-2",
}

#: The kind of network, by words of the name of a network card (lower case); the first that fits.
NETWORKS: tuple[tuple[str, NetworkName], ...] = (
    (r"\btcp\b|socket", "sockets"),
    (r"\befa", "efa"),
    (r"roce|rdma over|spectrum|slingshot|tcpxo|fastrak", "roce"),
    (r"tcpx\b|\bena\b|gvnic|gve\b", "sockets"),
    (r"infiniband|\b[qfehnx]dr\d*\b|\bib\b|omni-?path|\bopa\b", "infiniband"),
    (r"rdma", "roce"),
    (r"ethernet|gbe\b", "sockets"),
)

#: Gb/s of a card that says no bandwidth, by words of its name; the first that fits.
SPEEDS: tuple[tuple[str, float], ...] = (
    (r"xdr|connectx-?8|\bcx-?8", 800.0),
    (r"ndr200", 200.0),
    (r"ndr|connectx-?7|\bcx-?7", 400.0),
    (r"hdr100", 100.0),
    (r"hdr|connectx-?6|\bcx-?6", 200.0),
    (r"edr|connectx-?5|omni-?path|\bopa\b", 100.0),
    (r"fdr", 56.0),
    (r"qdr", 40.0),
)
_BITS = r"G(?:b/s|bps|bit/s|bit|bE|b)?(?![A-Za-z])"
_RANGE = r"(\d+(?:\.\d+)?)(?:\s*-\s*\d+(?:\.\d+)?)?"
PCIE_SHARE = 0.8  # of the peak, which a PCIe link achieves
_FASTEST_CARD = 800.0  # Gb/s; what is faster is all cards of a node together
_FASTEST_NODE = 1e6  # Gb/s
_GBITS = 1e9 / 8


@dataclass(frozen=True, slots=True)
class NetworkCards:
    """The network cards of a node: their kind, how many, and bytes per second of each in one direction.

    ``kind`` None is not said, and so are ``count`` and ``bandwidth`` 0; ``per_gpu`` is one card for each GPU.
    """

    kind: NetworkName | None
    count: int
    bandwidth: float
    per_gpu: bool = False


@dataclass(frozen=True, slots=True)
class MeasuredSystem:
    """The GPUs of a group and the system that they are part of: ``gpus`` on each of ``nodes`` of a preset.

    ``bandwidth`` of links inside a node, and ``card``, differ from the preset's where they are not None; so does
    ``in_switch_reduction`` where it is False.
    """

    preset: str
    nodes: int
    gpus: int
    bandwidth: float | None = None
    card: Wire | None = None
    in_switch_reduction: bool = True

    @property
    def per_node(self) -> int:
        """How many GPUs a node has: those of the preset, or more where a group has more of them."""
        return max(self.gpus, node_size(self.preset))

    @property
    def ranks(self) -> range | tuple[int, ...]:
        """The ranks of the group: the first GPUs of each node."""
        if self.nodes == 1 or self.gpus == self.per_node:
            return range(self.nodes * self.gpus)
        return tuple(node * self.per_node + gpu for node in range(self.nodes) for gpu in range(self.gpus))

    def topology(self) -> Topology:
        """Return the topology of the system."""
        said: dict[str, Any] = {"preset": self.preset, "nodes": self.nodes}
        if self.per_node != node_size(self.preset):
            said["gpus_per_node"] = self.per_node
        if self.bandwidth is not None:
            said["bandwidth"] = self.bandwidth
        if self.card is not None:
            card = self.card
            said["inter_node"] = {key: getattr(card, key) for key in Wire.__dataclass_fields__}
        if PRESETS[self.preset].spec.in_switch_reduction and not self.in_switch_reduction:
            said["in_switch_reduction"] = False
        return Topology.from_dict(said, source=self.preset)


@cache
def node_size(preset: str) -> int:
    """Return how many GPUs a node of a preset has."""
    outline = Topology.load(preset).outline
    assert outline is not None
    return outline.spec.gpus or 1


def preset_of(system: str) -> str | None:
    """Return the preset of a system or GPU by its name in a table, or None for one that is not known."""
    found = _found(system)
    return None if found is None else found[0]


def _found(system: str) -> tuple[str, float | None] | None:
    """Return the preset of a system and the bandwidth of its links; of another board of the catalogue, PCIe boards as fast."""
    plain = re.sub(r"[\s_-]+", " ", system.lower())
    found = next(((preset, bandwidth) for word, preset, bandwidth in SYSTEMS if re.search(word, plain)), None)
    if found is not None:
        return found
    gpu = gpu_of(system)
    return None if gpu is None or gpu.nvlink_bandwidth else ("a100-pcie", PCIE_SHARE * gpu.pcie_bandwidth)


def cards_of(nic: str) -> NetworkCards | None:
    """Return the network cards that a text such as '8x400 Gb/s InfiniBand NDR' describes, or None where it says nothing.

    Raises ``TriosimError`` for cards that no node has.
    """
    plain = nic.lower()
    kind = next((kind for word, kind in NETWORKS if re.search(word, plain)), None)
    several = re.search(rf"(\d+)\s*[x×]\s*{_RANGE}\s*{_BITS}", nic)
    single = re.search(rf"{_RANGE}\s*{_BITS}", nic)
    number = (
        re.search(r"(\d+)\s*(?:a|per)\s+node\b", plain)
        or re.search(r"\b(\d+)\s*[x×](?!\s*\d)", plain)
        or re.search(rf"{_BITS}\s*[x×]\s*(\d+)", nic)
    )
    count = int(several[1]) if several else int(number[1]) if number else 0
    speed = float(several[2] if several else single[1] if single else 0.0)
    speed = speed or next((rate for word, rate in SPEEDS if re.search(word, plain)), 0.0)
    if count > _FASTEST_NODE or max(count, 1) * speed > _FASTEST_NODE:
        raise TriosimError(f"nic: '{nic:.40}' is faster than any node")
    if speed > _FASTEST_CARD:
        count, speed = max(round(speed / 400.0), 1), 400.0
    if kind is None and not speed:
        return None
    if re.search(r"(per|a|each|every) gpu\b", plain):
        return NetworkCards(kind, 0, speed * _GBITS, per_gpu=True)
    return NetworkCards(kind, count or (1 if single else 0), speed * _GBITS)


def measured_system(row: Mapping[str, str], name: str) -> MeasuredSystem:
    """Return the system of a row of a table. ``name`` is what the table calls it.

    Raises ``TriosimError`` with the reason where the row does not say it, or says what cannot be.
    """
    known = _found(name)
    if known is None:
        what = (
            "the GPU is not stated" if re.search(r"unstated|not stated|unknown|^$", name.lower()) else "unknown system"
        )
        raise TriosimError(what if what[0] == "t" else f"{what} '{name}'")
    preset, bandwidth = known
    gpus, nic = _whole(row, "gpus") or _whole(row, "num_gpus"), row.get("nic", "")
    if gpus < 2:
        raise TriosimError("a collective has 2 GPUs or more")
    nodes, per_node = _whole(row, "nodes"), _whole(row, "gpus_per_node")
    if preset == "dgx-1-v100" and 0 < per_node <= node_size("v100-nvl4"):
        preset = "v100-nvl4"
    preset, nodes = _spread(preset, gpus, nodes, nic)
    if gpus % nodes:
        raise TriosimError(f"{gpus} GPUs are not shared out evenly over {nodes} nodes")
    inside = gpus // nodes
    while inside > node_size(preset) and preset in LARGER:
        preset, bandwidth = LARGER[preset], None
    card = None if nodes == 1 else _card(nic, inside, preset)
    return MeasuredSystem(preset, nodes, inside, bandwidth, card)


def _spread(preset: str, gpus: int, nodes: int, nic: str) -> tuple[str, int]:
    """Return the preset and the number of nodes of a group; trays of one rack are joined by NVLink where no card is said."""
    rack = LARGER.get(preset, "") if preset.startswith("gb") else ""
    if rack and gpus > node_size(preset) and (not nic or "nvl" in nic.lower()):
        return rack, math.ceil(gpus / node_size(rack))
    if nodes:
        return preset, nodes
    largest = preset
    while gpus > node_size(largest) and largest in LARGER:
        largest = LARGER[largest]
    return (largest, 1) if gpus <= node_size(largest) else (preset, math.ceil(gpus / node_size(preset)))


def _card(nic: str, inside: int, preset: str) -> Wire:
    """Return the network card of a GPU, where a group has ``inside`` GPUs on each node of a preset.

    Where a node has as many cards as GPUs, or more, each GPU has its share of them. Of fewer cards, the GPUs of the group share
    those that there are; a single GPU of a node has one card. What ``nic`` does not say is as in the preset.
    """
    usual, cards = PRESETS[preset].spec.inter_node, cards_of(nic)
    if usual is None or (nic and cards is None):
        raise TriosimError("the network cards are not stated")
    usual = replace(usual, gpus_per_nic=min(usual.gpus_per_nic, inside))
    if cards is None:
        return usual
    usual = replace(usual, network=cards.kind or usual.network)
    if not cards.bandwidth:
        return usual
    if not cards.count:
        return replace(usual, bandwidth=cards.bandwidth, gpus_per_nic=1 if cards.per_gpu else usual.gpus_per_nic)
    size = max(inside, node_size(preset))
    if cards.count >= size:
        return replace(usual, bandwidth=cards.bandwidth * (cards.count // size), gpus_per_nic=1)
    return replace(usual, bandwidth=cards.bandwidth, gpus_per_nic=math.ceil(inside / min(cards.count, inside)))


def _whole(row: Mapping[str, str], column: str) -> int:
    """Return the number in a column, 0 where there is none."""
    text = (row.get(column) or "").strip()
    if not text:
        return 0
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < 1e7 or number != int(number):
        raise TriosimError(f"{column}: '{text:.40}' is not a number of GPUs or nodes")
    return int(number)
