"""Reads tables of collectives that were measured on several systems, each row with the system that it was measured on.

Columns are ``system`` or ``gpu`` (else the name of the file says it), ``gpus`` or ``num_gpus``, ``bytes``, a time, and, where
there are any, ``collective``, ``nodes``, ``gpus_per_node``, ``nic``, ``algorithm`` and ``healthy``; others are for people.
Tables of DeepEP have columns of their own. Output of nccl-tests is read, too. A row that is not understood is kept, with the
reason.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from triosim.errors import TriosimError
from triosim.input_files.reading import head
from triosim.networks.calibration.fit import deepep_table, measured, nccl_tests, systems
from triosim.networks.calibration.fit.fitting import MeasuredCollective
from triosim.networks.calibration.fit.systems import MeasuredSystem
from triosim.tasks import DeepEP

Algorithm = Literal["ring", "tree", "nvls", "nvls-tree", "not-nvls"]

#: The kind of what nccl-tests calls sendrecv: every GPU sends its bytes to the next one.
SEND_RECEIVE = "send_receive"
#: The algorithms that a row may name, by words of the name (lower case); the first that fits.
_ALGORITHMS: tuple[tuple[str, Algorithm | None], ...] = (
    (r"default", None),
    (r"nvls.?tree", "nvls-tree"),
    (r"nvls_enable=0", "not-nvls"),
    (r"nvls", "nvls"),
    (r"ring", "ring"),
    (r"tree", "tree"),
)


@dataclass(frozen=True, slots=True)
class Group:
    """What rows of a table are grouped by: the name of their system, which the table calls ``named`` (system or gpu) and so on.

    ``healthy`` is None where the table has no such column.
    """

    named: str
    name: str
    nodes: int
    nic: str
    collective: str
    healthy: str | None = None

    def as_dict(self) -> dict[str, str | int]:
        """Return the values by the names of their columns."""
        known: dict[str, str | int] = {self.named: self.name, "nodes": self.nodes, "nic": self.nic}
        known["collective"] = self.collective
        return known if self.healthy is None else {**known, "healthy": self.healthy}


@dataclass(frozen=True, slots=True)
class SystemRow:
    """A row of a table: what was measured, on which system, and by which algorithm, where it names one, or kernel of DeepEP.

    Where the row cannot be judged, ``refused`` says why, and ``collective`` and ``system`` are None.
    """

    group: Group
    nbytes: float = 0.0
    collective: MeasuredCollective | None = None
    system: MeasuredSystem | None = None
    algorithm: Algorithm | None = None
    refused: str = ""
    kernel: DeepEP | None = None


def is_collectives(path: str) -> bool:
    """Return whether a file is a table of collectives or the output of nccl-tests, by its beginning."""
    try:
        text = head(Path(path)).decode("utf-8-sig", errors="replace")
    except (OSError, ValueError):
        return False
    names = {name.strip() for name in text.partition("\n")[0].split(",")}
    if "collective" in names or ({"bytes"} < names and names & {*measured.COUNTS}):
        return True
    return deepep_table.is_header(names) or nccl_tests.is_output(text)


def read(path: str, *, collective: str | None = None, gpu: str | None = None) -> list[SystemRow]:
    """Return the rows of a table; those of ``gpu`` where it is about several, and where it names none they are of that GPU.

    Raises ``TriosimError`` where the table as a whole cannot be read.
    """
    text = measured.text_of(path)
    if nccl_tests.is_output(text):
        return _of_nccl_tests(path, collective, gpu)
    names, lines = measured.columns_and_lines(text, path)
    table = _Table(names, path, collective, gpu)
    rows = [row for _, line in lines if table.has(line) for row in table.rows(line)]
    if not rows:
        fix = "give at least one row under the header" if gpu is None else f"it has no rows of {gpu}"
        raise TriosimError("holds no rows", where=path, fix=fix)
    return rows


def algorithm_of(text: str) -> Algorithm | None:
    """Return the algorithm of a text such as 'NCCL_ALGO=Ring', None where NCCL chose."""
    plain = text.lower()
    return next((name for word, name in _ALGORITHMS if re.search(word, plain)), None)


def _of_nccl_tests(path: str, collective: str | None, gpu: str | None) -> list[SystemRow]:
    name = gpu or _gpu_in_name(path)
    found = []
    for row in measured.read(path, collective=collective):
        group = Group("gpu", name, row.nodes, "", row.kind)
        found.append(_placed(group, row, {"gpus": str(row.gpus), "nodes": str(row.nodes)}, None))
    return found


def _gpu_in_name(path: str) -> str:
    """Return the GPU that the name of a file has among its words. Raises ``TriosimError`` where there is none."""
    words = re.split(r"[\s._-]+", Path(path).name)
    found = next((word for word in words if systems.preset_of(word)), None)
    if found is None:
        fix = "add a column 'system' or 'gpu', or give --gpu or --topology"
        raise TriosimError("does not say on which system it was measured", where=path, fix=fix)
    return found


def _placed(group: Group, row: MeasuredCollective, said: Mapping[str, str], algorithm: Algorithm | None) -> SystemRow:
    """Return a row with its system, or with the reason why there is none; ``said`` are the cells that say which it is.

    An all-reduce inside a node by an algorithm that is not NVLS is one on a system whose switches cannot reduce.
    """
    try:
        system = systems.measured_system(said, group.name)
    except TriosimError as error:
        return SystemRow(group, row.nbytes, refused=error.what)
    if algorithm in ("ring", "tree", "not-nvls") and row.kind == "all_reduce" and system.nodes == 1:
        system = replace(system, in_switch_reduction=False)
    row = replace(row, gpus=system.nodes * system.gpus, nodes=system.nodes)
    return SystemRow(replace(group, nodes=system.nodes), row.nbytes, row, system, algorithm)


class _Table:
    """The header of a table, and what its rows become."""

    def __init__(self, names: Sequence[str], path: str, collective: str | None, gpu: str | None) -> None:
        self.gpu = gpu
        self.column = next((name for name in measured.SYSTEMS if name in names), None)
        self.named = self.column or "gpu"
        self.name = "" if self.column else gpu or _gpu_in_name(path)
        self.healthy = "healthy" in names
        self.deepep = deepep_table.is_header(names)
        if not self.deepep:
            self.time = measured.time_column(names, path)
            self.kind = collective or measured.collective_in_name(path) or ""
            if "collective" not in names and not self.kind:
                fix = measured.COLLECTIVE_FIX
                raise TriosimError("does not say which collective it is", where=path, fix=fix)

    def has(self, line: Mapping[str, str]) -> bool:
        """Whether a line is of the GPU that is asked for."""
        if self.gpu is None or self.column is None:
            return True
        name, wanted = line[self.column], systems.preset_of(self.gpu)
        return measured.same_gpu(name, self.gpu) or (wanted is not None and systems.preset_of(name) == wanted)

    def rows(self, line: Mapping[str, str]) -> list[SystemRow]:
        """Return what a line measured: one collective, or DeepEP's dispatch and combine."""
        if self.deepep:
            return [self._kernel(line, step) for step in deepep_table.STEPS]
        word, nbytes = line.get("collective") or self.kind, 0.0
        kind = _kind(word)
        group = self._group(line, kind or word)
        try:
            nbytes = measured.positive(line["bytes"], "bytes", "")
            seconds = measured.positive(line[self.time], self.time, "") * measured.TIMES[self.time]
            measured.check_rate(nbytes, seconds, "")
            _check_counts(line)
        except TriosimError as error:
            return [SystemRow(group, nbytes, refused=error.what)]
        if kind is None:
            return [SystemRow(group, nbytes, refused=f"unknown collective '{word}'")]
        row = MeasuredCollective(kind, 2, nbytes, seconds)
        return [_placed(group, row, line, algorithm_of(line.get("algorithm", "")))]

    def _kernel(self, line: Mapping[str, str], step: deepep_table.Step) -> SystemRow:
        """Return a kernel of DeepEP on all GPUs of its nodes; its bytes are those of a GPU's tokens."""
        group = self._group(line, step, "node_num")
        try:
            kernel, seconds = deepep_table.kernel_of(line, step), deepep_table.seconds_of(line, step)
            measured.check_rate(kernel.tokens * kernel.token_bytes, seconds, "")
            preset = systems.preset_of(group.name)
            per_node = 0 if preset is None else systems.node_size(preset)
        except TriosimError as error:
            return SystemRow(group, refused=error.what)
        except KeyError as error:
            return SystemRow(group, refused=f"has no column {error.args[0]}")
        row = MeasuredCollective(step, 2, kernel.tokens * kernel.token_bytes, seconds)
        said = {**line, "gpus": str(group.nodes * max(per_node, 2)), "nodes": str(group.nodes)}
        return replace(_placed(group, row, said, None), kernel=kernel)

    def _group(self, line: Mapping[str, str], kind: str, nodes: str = "nodes") -> Group:
        name = line[self.column] if self.column else self.name
        count = line.get(nodes, "")
        healthy = line["healthy"] if self.healthy else None
        return Group(self.named, name, int(count) if count.isdecimal() else 1, line.get("nic", ""), kind, healthy)


def _check_counts(line: Mapping[str, str]) -> None:
    """Raise ``TriosimError`` where the GPUs of a line are not those of its nodes."""
    said = [line.get(name, "") for name in ("gpus", "nodes", "gpus_per_node")]
    if all(map(str.isdecimal, said)) and int(said[0]) > int(said[1]) * int(said[2]):
        raise TriosimError(f"{said[0]} GPUs on {said[1]} nodes of {said[2]}")


def _kind(word: str) -> str | None:
    """Return the kind of a collective by its name in a table, or None for one that is not known."""
    if re.sub(r"[^a-z]", "", word.lower()).removesuffix("perf") in ("sendrecv", "sendreceive"):
        return SEND_RECEIVE
    with suppress(TriosimError):
        return measured.kind_of(word, "")
    return None
