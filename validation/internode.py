"""Collectives between nodes against measured ones: fitted to all clusters but one, and judged on that one.

The rows are nccl-tests on many clouds, and NVIDIA's scan of 32 to 2,048 H100s. What happens inside a node comes from the
calibrations of the machines (:mod:`validation.collectives`). ``python -m validation.internode --write`` fits what ships with
triosim, to all clusters.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from statistics import mean, median

import numpy as np
import numpy.typing as npt

from triosim import output_files as output
from triosim.networks.calibration import doubt, internode
from triosim.networks.calibration.curves import TimeParts
from triosim.networks.calibration.fit import system_table
from triosim.networks.calibration.fit.system_table import SEND_RECEIVE, SystemRow
from triosim.networks.calibration.fit.systems import MeasuredSystem
from triosim.networks.calibration.internode import InterNodeModel, NetworkKind, ProtocolConstants
from triosim.networks.calibration.lookup import calibration_of
from triosim.networks.topology import Topology
from triosim.results.uncertainty import WIDTH
from validation.collectives import MACHINES
from validation.report import DataAbsent, Row, data

Array = npt.NDArray[np.float64]

LARGE = 2**20  # bytes; from there on bandwidth decides, below it latency
SCAN = "NVIDIA's scan"
NETWORKS = ("infiniband", "roce", "efa", "sockets")
FILE = Path(internode.__file__).with_name("internode.json")
#: What is believed of each constant before any row is seen, and how firmly (standard deviation): logits of shares, or logs.
PRIOR: dict[str, tuple[float, float]] = {
    **{f"hop {name}": (math.log(hop), 1.0) for name, hop in zip(NETWORKS, (6e-6, 8e-6, 20e-6, 30e-6), strict=True)},
    **{f"efficiency {name}": (2.5, 1.0) for name in NETWORKS},
    "lone": (-1.0, 1.0),  # added to the logit of RoCE's efficiency where a node has one GPU in the group
    "hop_exponent": (0.5, 0.3),  # of EFA: between not at all and in proportion to the card's bandwidth
    "launch": (math.log(6e-6), 0.5),
    "simple_hops": (math.log(2.0), 0.7),
    "low_latency_share": (-1.5, 1.0),
    "chunk": (math.log(2**19), 0.7),  # NCCL's buffers of 4 MiB have 8 slots
    "ring_hop": (-0.5, 0.7),
}
BELIEF = 1.0  # weight of the prior beside the rows
ROBUST = 0.15  # errors of ln(seconds) beyond this count linearly
LARGE_WEIGHT = 1.5  # of a row from 1 MiB; each cluster weighs as the root of its rows


@dataclass(frozen=True, slots=True)
class ClusterRow:
    """One collective that was measured between the nodes of a cluster, and what its share inside a node takes.

    ``cluster`` is the collective and the group, ``machine`` the GPU and its network, which are left out together. ``judged``
    is what is asked of: NCCL over InfiniBand, RoCE or EFA, on a healthy cluster.
    """

    cluster: str
    machine: str
    judged: bool
    network: str
    kind: str
    algorithm: str
    nodes: int
    gpus: int
    bandwidth: float
    gpus_per_card: int
    nbytes: float
    seconds: float
    inside: TimeParts


def cluster_rows() -> list[ClusterRow]:
    """Return the rows between nodes whose tables say which system and network they are about."""
    found: list[ClusterRow] = []
    for name in ("multi_node", "h100_scale_digitised"):
        rows = system_table.read(str(data(f"collectives/{name}.csv.gz")))
        found.extend(row for row in (_row(one, name != "multi_node") for one in rows) if row is not None)
    return found


def _row(said: SystemRow, scan: bool) -> ClusterRow | None:
    row, system, nic = said.collective, said.system, said.group.nic
    if row is None or system is None or row.nodes == 1 or row.kind == SEND_RECEIVE or "TCPX" in nic or "Omni" in nic:
        return None  # no kind of network here, but Google's own or a rare one
    topology = _topology(system)
    calibration = calibration_of(topology)
    assert calibration is not None
    assert topology.outline is not None
    assert topology.outline.spec.inter_node is not None
    model, wire = calibration.internode, topology.outline.spec.inter_node
    assert model is not None
    used = row.gpus // row.nodes
    inside = calibration.inside(row.kind, used, row.nbytes) if used > 1 else TimeParts(0.0, 0.0)
    if inside is None:
        return None
    network, bandwidth = wire.network, model.bandwidth
    if "T4" in said.group.name:  # 50 Gb/s; without GPUDirect EFA goes through the host's memory, as TCP does
        network, bandwidth = "sockets", 6.25e9
    machine = SCAN if scan else f"{said.group.name}, {nic}"
    return ClusterRow(
        machine if scan else f"{machine}, {row.gpus} GPUs, {row.kind}",
        machine,
        not scan and network != "sockets" and said.group.healthy == "yes",
        network,
        row.kind,
        said.algorithm or "",
        row.nodes,
        row.gpus,
        bandwidth,
        model.gpus_per_card,
        row.nbytes,
        row.seconds,
        inside,
    )


@cache
def _topology(system: MeasuredSystem) -> Topology:
    return system.topology()


Constants = tuple[Mapping[str, NetworkKind], ProtocolConstants]


def constants_at(point: Mapping[str, float]) -> Constants:
    """Return the constants of a point: logits of shares, logarithms of all others."""
    networks = {
        name: NetworkKind(
            math.exp(point[f"hop {name}"]),
            _share(point[f"efficiency {name}"]),
            _share(point[f"efficiency {name}"] + (point["lone"] if name == "roce" else 0.0)),
            point["hop_exponent"] if name == "efa" else 0.0,
        )
        for name in NETWORKS
    }
    shared = ProtocolConstants(
        launch=math.exp(point["launch"]),
        simple_hops=math.exp(point["simple_hops"]),
        low_latency_share=_share(point["low_latency_share"]),
        chunk=math.exp(point["chunk"]),
        ring_hop=math.exp(point["ring_hop"]),
        peer=seconds_a_peer(),
        latency_error=math.nan,  # of what is left out: see ``write``
        moving_error=math.nan,
    )
    return networks, shared


@cache
def seconds_a_peer() -> float:
    """Return what each further peer adds to an all-to-all that moves nothing.

    No row has an all-to-all between nodes. Between the L40S of one node, whose sends cross PCIe as those to a card do, it is a
    sixth of what the quickest all-to-all of 8 takes longer than that of 2 (0.6 us); over NVLink it is 0.15 to 0.35 us.
    """
    rows = [
        row for row in next(one for one in MACHINES if one.preset == "l40s-pcie").rows() if row.kind == "all_to_all"
    ]
    two, eight = (min(row.seconds for row in rows if row.gpus == gpus) for gpus in (2, 8))
    return (eight - two) / 6


def _share(logit: float) -> float:
    return 1.0 / (1.0 + math.exp(-logit))


def predicted(row: ClusterRow, constants: Constants) -> TimeParts:
    """Return the time of a row: by the algorithm that it names, or the one that is chosen."""
    networks, shared = constants
    model = InterNodeModel(networks[row.network], shared, row.bandwidth, row.gpus_per_card)
    return model.parts(row.kind, row.nodes, row.gpus, row.nbytes, row.inside, row.algorithm or None)


def fit(rows: Sequence[ClusterRow]) -> Constants:
    """Fit the constants to rows: least squares of ln(seconds), with a loss that grows linearly for rows far off."""
    from scipy.optimize import least_squares

    names = list(PRIOR)
    start = np.array([PRIOR[name][0] for name in names])
    firmness = np.array([PRIOR[name][1] for name in names])
    counts = {row.cluster: sum(other.cluster == row.cluster for other in rows) for row in rows}
    weights = np.array(
        [(LARGE_WEIGHT if row.nbytes >= LARGE else 1.0) / math.sqrt(counts[row.cluster]) for row in rows]
    )
    weights = weights / weights.mean()
    target = np.log([row.seconds for row in rows])

    def errors(point: Array) -> Array:
        constants = constants_at(dict(zip(names, point, strict=True)))
        said = np.log([predicted(row, constants).total for row in rows])
        return np.concatenate([(said - target) * weights, BELIEF * (point - start) / firmness])

    found = least_squares(errors, start, loss="soft_l1", f_scale=ROBUST)
    return constants_at(dict(zip(names, found.x, strict=True)))


@dataclass(frozen=True, slots=True)
class ClusterErrors:
    """Mean absolute errors of one cluster's rows, from 1 MiB and below; nan where it has none.

    ``covered`` is the share of its rows whose time is within the 90% interval that is stated.
    """

    cluster: str
    judged: bool
    rows: int
    covered: float
    large: float
    small: float


def errors_of(rows: Sequence[ClusterRow], constants: Constants) -> list[ClusterErrors]:
    """Return the errors of each cluster of some rows."""
    found = []
    for cluster in dict.fromkeys(row.cluster for row in rows):
        mine = [row for row in rows if row.cluster == cluster]
        said = [predicted(row, constants) for row in mine]
        ratios = [parts.total / row.seconds for parts, row in zip(said, mine, strict=True)]
        stated = [doubt.between_nodes().of(parts) for parts in said]
        covered = mean(abs(math.log(r)) <= math.log1p(WIDTH * e) for r, e in zip(ratios, stated, strict=True))
        sides = (
            [abs(r - 1) for r, row in zip(ratios, mine, strict=True) if (row.nbytes >= LARGE) is large]
            for large in (True, False)
        )
        found.append(
            ClusterErrors(
                cluster, mine[0].judged, len(mine), covered, *(mean(side) if side else math.nan for side in sides)
            )
        )
    return found


def left_out() -> list[ClusterErrors]:
    """Return the errors of each cluster, predicted with constants that were fitted without its machine."""
    rows = cluster_rows()
    found: list[ClusterErrors] = []
    for machine in dict.fromkeys(row.machine for row in rows):
        constants = fit([row for row in rows if row.machine != machine])
        found.extend(errors_of([row for row in rows if row.machine == machine], constants))
    return found


def over_clusters(errors: Sequence[ClusterErrors], of: Callable[[Sequence[float]], float]) -> tuple[float, float]:
    """Return a figure (median, mean, worst) over the judged clusters of their errors from 1 MiB and below."""
    judged = [one for one in errors if one.judged]
    large, small = (
        [e for e in side if not math.isnan(e)] for side in zip(*((o.large, o.small) for o in judged), strict=True)
    )
    return of(large), of(small)


def rows() -> list[Row]:
    found = errors_of(cluster_rows(), internode.constants())
    scan = next(one for one in found if one.cluster == SCAN)
    large, small = over_clusters(found, median)
    count = sum(one.judged for one in found)
    return [
        Row("collectives between nodes, median of clusters, from 1 MiB", "NCCL", count, large, 0.15),
        Row("collectives between nodes, median of clusters, below", "NCCL", count, small, 0.30),
        Row("all_reduce on 32 to 2,048 H100s", "NVIDIA", scan.rows, scan.large, 0.12),
    ]


def write() -> None:
    """Fit what ships, and write it."""
    networks, shared = fit(cluster_rows())
    large, small = over_clusters(left_out(), mean)
    shared = replace(shared, latency_error=small, moving_error=large)
    rounded = {
        "networks": {name: _rounded(asdict(one)) for name, one in networks.items()},
        "shared": _rounded(asdict(shared)),
    }
    with output.writing_text(FILE) as file:
        json.dump(rounded, file, indent=2)
        file.write("\n")


def _rounded(values: Mapping[str, float]) -> dict[str, float]:
    return {key: float(f"{value:.4g}") for key, value in values.items()}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m validation.internode", description=__doc__)
    parser.add_argument("--write", action="store_true", help="fit again what ships with triosim")
    if parser.parse_args().write:
        write()
        return
    fitted = errors_of(cluster_rows(), internode.constants())
    out = {one.cluster: one for one in left_out()}
    print(f"{'cluster':84} rows   from 1 MiB (left out)    below (left out)")
    for one in fitted:
        print(
            _line(
                one.cluster, f"{one.rows:4}", (one.large, one.small), (out[one.cluster].large, out[one.cluster].small)
            )
        )
    covered = mean(one.covered for one in out.values() if one.judged)
    print(f"within the stated 90% interval, left out, mean of the judged clusters: {covered:.0%}")
    for name, of in (("median", median), ("mean", mean), ("worst", max)):
        print(
            _line(
                f"{name} of the judged clusters", "", over_clusters(fitted, of), over_clusters(list(out.values()), of)
            )
        )


def _line(name: str, rows: str, fitted: tuple[float, float], out: tuple[float, float]) -> str:
    large, small = (f"{100 * one:8.1f} % ({100 * other:5.1f} %)" for one, other in zip(fitted, out, strict=True))
    return f"{name:84.84} {rows:4} {large} {small}"


if __name__ == "__main__":
    try:
        main()
    except DataAbsent as absent:
        raise SystemExit(f"{absent}") from None
