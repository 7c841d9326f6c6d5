"""Calibrated collectives inside a node against measured ones that the fit did not see: sizes and group sizes held out.

The data are NCCL's times on 2, 4 and 8 GPUs of seven machines (aiconfigurator), its all-reduce on 2 to 8 GPUs of an A100 and a
V100 machine (vTrain) and, for what is larger than 512 MiB (A100: 1 GiB), nccl-tests on clouds.
``python -m validation.collectives --write`` fits what ships with triosim, to all of them together.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean

from triosim import output_files as output
from triosim.networks.calibration import stored
from triosim.networks.calibration.fit import fitting, judging, measured, system_evaluation, system_table
from triosim.networks.calibration.fit.fitting import MeasuredCollective as Measured
from triosim.networks.calibration.fit.joint import JointFit, MachineRows
from triosim.networks.calibration.fit.judging import ErrorSummary
from triosim.networks.calibration.lookup import completed, nearest_machine, stand_in
from triosim.networks.calibration.model import Calibration, MeasuredNode
from triosim.networks.topology import Topology
from triosim.networks.topology.node_bandwidth import node_bandwidth
from triosim.networks.topology.shapes import ShapeOutline
from validation.report import DataAbsent, Row, data

VTRAIN = "collectives/nccl_all_reduce_a100_v100_nvlink.csv.gz"
MORE = "collectives/nccl_more_systems.csv.gz"
CLOUDS = "collectives/multi_node.csv.gz"
LARGE, SMALL = 0.06, 0.15
FOLDS = 3  # every third size of a collective and group is held out together
#: Where NCCL changes its protocol, between 1 and 2 MiB on the A100, a size that is left out leaves a gap over the step.
ACROSS_A_STEP = {
    ("dgx-a100", "all_gather"): 0.14,
    ("dgx-a100", "reduce_scatter"): 0.13,
    ("dgx-b200", "all_gather"): 0.09,
    ("l40s-pcie", "all_gather"): 0.10,
    ("l40s-pcie", "all_reduce"): 0.12,
    ("l40s-pcie", "all_to_all"): 0.09,
}


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine whose calibration ships: the preset, its generation, and its rows in the tables."""

    preset: str
    generation: str
    table: str
    system: str = ""  # of a table about several

    @property
    def outline(self) -> ShapeOutline:
        """What the preset is made of."""
        outline = Topology.load(self.preset).outline
        assert outline is not None
        return outline

    @property
    def node(self) -> MeasuredNode:
        """The inside of the preset's node."""
        spec = self.outline.spec
        if spec.topology == "pcie_tree":
            return MeasuredNode(node_bandwidth(spec), spec.latency, "pcie", gpus_per_switch=spec.gpus_per_switch)
        return MeasuredNode(node_bandwidth(spec), spec.latency, reduces=spec.in_switch_reduction)

    def rows(self) -> list[Measured]:
        """Return the measured collectives of the machine."""
        return measured.read(data(self.table), gpu=self.system or None)


_NVSWITCH = "collectives/nccl_{}_nvswitch.csv.gz"
MACHINES = (
    Machine("dgx-a100", "ampere", _NVSWITCH.format("a100")),
    Machine("dgx-h100", "hopper", _NVSWITCH.format("h100")),
    Machine("dgx-h200", "hopper", _NVSWITCH.format("h200")),
    Machine("dgx-b200", "blackwell", MORE, "B200-SXM"),
    Machine("dgx-b300", "blackwell", MORE, "B300-SXM"),
    Machine("gb200-nvl4", "blackwell", MORE, "GB200 (4-GPU tray)"),
    Machine("l40s-pcie", "ada", MORE, "L40S (PCIe)"),
)


def linked(gpu: str) -> list[Measured]:
    """Return the all-reduces of the A100 or V100 machine, on 2 to 8 GPUs."""
    return measured.read(data(VTRAIN), gpu=gpu)


def fitted_rows(without: str = "") -> dict[str, MachineRows]:
    """Return what ships is fitted to, by preset: the rows of each machine, and of clouds what is larger than all of them.

    ``without`` is a system of the table of clouds that is left out.
    """
    found = own_rows()
    for preset, name, row in larger():
        if name != without:
            found[preset].append(row)
    return {one.preset: MachineRows(one.preset, one.generation, found[one.preset]) for one in MACHINES}


def own_rows() -> dict[str, list[Measured]]:
    """Return the rows of each machine by preset; those of the A100 are of two sources."""
    found = {one.preset: one.rows() for one in MACHINES}
    found["dgx-a100"] += linked("a100")
    return found


def larger() -> Iterator[tuple[str, str, Measured]]:
    """Yield the collectives on clouds that are larger than all of the machine's own, of the kinds that it has."""
    own = own_rows()
    largest = {preset: max(row.nbytes for row in rows) for preset, rows in own.items()}
    kinds = {preset: {row.kind for row in rows} for preset, rows in own.items()}
    for preset, name, row in on_clouds():
        if preset in own and row.kind in kinds[preset] and row.nbytes > largest[preset]:
            yield preset, name, row


def on_clouds() -> Iterator[tuple[str, str, Measured]]:
    """Yield the preset, the table's name of the system and the row of collectives on one healthy node, as NCCL runs them."""
    for one in system_table.read(str(data(CLOUDS))):
        row, system = one.collective, one.system
        if row is None or system is None or row.nodes > 1 or one.group.healthy != "yes":
            continue
        if one.algorithm in (None, "nvls"):
            yield system.preset, one.group.name, row


def beyond() -> Iterator[UnseenMachine]:
    """Judge what is larger than the machines' own rows: of each system of the table of clouds, left out of the fit."""
    rows = list(larger())
    for preset, name in dict.fromkeys((preset, name) for preset, name, _ in rows):
        curves = JointFit(list(fitted_rows(without=name).values())).curves(preset)
        mine = [row for *of, row in rows if of == [preset, name]]
        said = [curves[row.kind].parts(row.gpus, row.nbytes).total for row in mine]
        yield UnseenMachine(preset, name, judging.judged(mine, said))


def held_out(preset: str, machines: dict[str, MachineRows]) -> tuple[list[Measured], list[float]]:
    """Return the rows of a machine, but for the least and the largest of each group, predicted by a fit without their size."""
    mine, own = machines[preset], own_rows()[preset]
    groups = sorted({(row.kind, row.gpus) for row in own})
    sizes = {key: sorted({row.nbytes for row in own if (row.kind, row.gpus) == key}) for key in groups}
    found: list[Measured] = []
    said: list[float] = []
    for fold in range(FOLDS):
        out = {(*key, nbytes) for key in groups for nbytes in sizes[key][1:-1][fold::FOLDS]}
        left = [row for row in mine.rows if (row.kind, row.gpus, row.nbytes) not in out]
        rows = [row for row in own if (row.kind, row.gpus, row.nbytes) in out]
        fit = JointFit([*(one for one in machines.values() if one is not mine), replace(mine, rows=left)])
        found.extend(rows)
        said.extend(float(seconds) for seconds in fit.seconds(preset, rows))
    return found, said


@dataclass(frozen=True, slots=True)
class UnseenMachine:
    """The errors on a machine that is predicted from the nearest of some others, scaled."""

    preset: str
    nearest: str
    errors: ErrorSummary

    @property
    def percent(self) -> tuple[float, float]:
        """The mean errors from 1 MiB and below; nan where there are no rows."""
        large, small = (math.nan if one is None else one.mape_percent for one in (self.errors.large, self.errors.small))
        return large, small


def unseen(machines: dict[str, MachineRows], *, generations: bool = False) -> Iterator[UnseenMachine]:
    """Leave each machine out, or its whole generation, and predict it from the nearest one of those that are left."""
    for machine in MACHINES:
        seen = [
            one for one in MACHINES if one is not machine and not (generations and one.generation == machine.generation)
        ]
        fit = JointFit([machines[one.preset] for one in seen])
        fitted = {one.preset: Calibration(8, fit.curves(one.preset), node=one.node) for one in seen}
        name = nearest_machine(machine.node, fitted)
        scaled = completed(fitted[name], machine.outline)
        yield UnseenMachine(machine.preset, name, judging.judged(machine.rows(), _seconds(scaled, machine.rows())))


def cube_mesh() -> UnseenMachine:
    """Judge DGX-1's hybrid cube mesh of V100s, of which nothing was fitted."""
    rows, topology = linked("v100"), Topology.load("dgx-1-v100")
    return UnseenMachine("dgx-1-v100", stand_in(topology), judging.judged(rows, judging.predict(topology, rows)))


#: NCCL's all-reduce on 8 RTX PRO 6000 as it comes: (bytes, seconds) of servers with PCIe switches, the last of one with two
#: sockets (github voipmonitor/rtx6kpro, hardware/pcie-bandwidth.md, read in November 2026).
RTX_PRO_6000 = (
    *((2.0**8, 24.6e-6), (2.0**10, 24.1e-6), (2.0**13, 24.2e-6), (2.0**15, 24.5e-6), (2.0**16, 24.1e-6)),
    *((2.0**18, 28.0e-6), (2.0**25, 1.75 * 2**25 / 40.1e9), (2.0**25, 1.75 * 2**25 / 22.2e9)),
)


def boards() -> UnseenMachine:
    """Judge PCIe boards in servers of which nothing was fitted."""
    rows = [Measured("all_reduce", 8, nbytes, seconds) for nbytes, seconds in RTX_PRO_6000]
    topology = Topology.load("rtx-pro-6000-pcie")
    return UnseenMachine(topology.name, stand_in(topology), judging.judged(rows, judging.predict(topology, rows)))


def elsewhere() -> list[UnseenMachine]:
    """Judge the measured machines on rows of other clusters that have their GPUs, inside a node."""
    found = system_evaluation.evaluate(str(data(CLOUDS))).groups
    healthy = [one for one in found if one.group.nodes == 1 and one.group.healthy == "yes"]
    presets = {machine.preset for machine in MACHINES}
    return [
        UnseenMachine(one.topologies[0], one.group.name, one.errors)
        for one in healthy
        if one.topologies and one.topologies[0] in presets
    ]


def _seconds(calibration: Calibration, rows: Sequence[Measured]) -> list[float]:
    found = [calibration.parts(row.kind, row.gpus, row.nbytes) for row in rows]
    return [0.0 if parts is None else parts.total for parts in found]


@dataclass(frozen=True, slots=True)
class Groups:
    """The mean error on group sizes that were not fitted, in percent, and how many rows they have, by number of GPUs."""

    gpu: str
    percent: dict[int, float]
    rows: dict[int, int]


def other_groups(gpu: str, fitted: Sequence[int] = (2, 4, 8)) -> Groups:
    """Fit all-reduces of some group sizes, and judge the others."""
    rows = linked(gpu)
    curves = fitting.fit_kind("all_reduce", [row for row in rows if row.gpus in fitted])
    found: dict[int, float] = {}
    counts: dict[int, int] = {}
    others = [row for row in rows if row.gpus not in fitted]
    for gpus in sorted({row.gpus for row in others}):
        errors = [abs(curves.parts(gpus, row.nbytes).total / row.seconds - 1) for row in others if row.gpus == gpus]
        found[gpus], counts[gpus] = 100.0 * sum(errors) / len(errors), len(errors)
    return Groups(gpu, found, counts)


def rows() -> list[Row]:
    found = []
    machines = fitted_rows()
    for machine in MACHINES:
        left, said = held_out(machine.preset, machines)
        for kind, one in judging.by_collective(left, said).items():
            assert one.large is not None
            assert one.small is not None
            name = f"{kind} on {machine.preset}, sizes left out, mean"
            large = ACROSS_A_STEP.get((machine.preset, kind), LARGE)
            found.append(Row(f"{name}, from 1 MiB", "NCCL", one.large.rows, one.large.mape_percent / 100, large))
            found.append(Row(f"{name}, below", "NCCL", one.small.rows, one.small.mape_percent / 100, SMALL))
    groups = other_groups("a100")
    for gpus, percent in groups.percent.items():
        what = f"all_reduce on {gpus} A100, fitted to 2, 4 and 8, mean"
        found.append(Row(what, "NCCL", groups.rows[gpus], percent / 100, LARGE))
    return found


def write(folder: Path) -> None:
    """Fit what ships, and write it."""
    machines = fitted_rows()
    fit = JointFit(list(machines.values()))
    for machine in MACHINES:
        count = len(machines[machine.preset].rows)
        sources = "NVIDIA aiconfigurator (Apache-2.0)"
        if machine.preset == "dgx-a100":
            sources += " and VIA-Research vTrain (MIT)"
        if any(preset == machine.preset for preset, *_ in larger()):
            sources += ", the largest from nccl-tests on clouds"
        note = f"fitted to {count} NCCL times on {machine.preset}, inside a node, from {sources}"
        per_node = max(row.gpus for row in machines[machine.preset].rows)
        calibration = Calibration(per_node, fit.curves(machine.preset), note=note, node=machine.node)
        with output.writing_text(folder / f"{machine.preset}.json") as file:
            json.dump(stored.to_mapping(calibration), file)
            file.write("\n")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m validation.collectives", description=__doc__)
    parser.add_argument("--write", action="store_true", help="fit again what ships with triosim")
    if parser.parse_args().write:
        write(stored.SHIPPED)
        return
    for row in rows():
        print(f"{row.what:60} {row.cases:4} {100 * row.error:6.2f} % {'' if row.holds else 'misses'}")
    for gpu in ("a100", "v100"):
        print(gpu, {gpus: round(percent, 2) for gpus, percent in other_groups(gpu).percent.items()})
    machines = fitted_rows()
    _print("machine left out", unseen(machines))
    generations = _print("generation left out", unseen(machines, generations=True))
    folds = [
        abs(math.log(Machine(one.preset, "", "").node.bandwidth / Machine(one.nearest, "", "").node.bandwidth))
        for one in generations
    ]
    _print_mean("for each e-fold of bandwidth", generations[:-1], folds[:-1])  # without the L40S, on other links
    _print("never fitted", [cube_mesh(), boards()])
    _print("larger, source left out", beyond())
    others = _print("elsewhere", elsewhere())
    _print_mean("elsewhere, mean", others, [1.0] * len(others))


def _print(what: str, found: Iterable[UnseenMachine]) -> list[UnseenMachine]:
    shown = []
    for one in found:
        large, small = one.percent
        print(f"{what:20} {one.preset:12} from {one.nearest:40} {large:5.1f} % from 1 MiB {small:5.1f} % below")
        shown.append(one)
    return shown


def _print_mean(what: str, found: Sequence[UnseenMachine], folds: Sequence[float]) -> None:
    sides = zip(*([error / fold for error in one.percent] for one, fold in zip(found, folds, strict=True)), strict=True)
    large, small = (mean(error for error in side if not math.isnan(error)) for side in sides)
    print(f"{what:78} {large:5.1f} % from 1 MiB {small:5.1f} % below")


if __name__ == "__main__":
    try:
        main()
    except DataAbsent as absent:
        raise SystemExit(f"{absent}") from None
