"""The report ``timeline``: a run as Chrome trace events, for Perfetto (ui.perfetto.dev) and chrome://tracing.

A GPU is a process, a stream a track, each operator and transfer a slice, the waiting of a transfer a slice inside of it; arrows
lead from sends to receives and along the network's flows; a counter shows each link's utilisation. In Google's "Trace Event
Format", ``ts`` and ``dur`` are microseconds, here of whole nanoseconds, so that slices that touch do not overlap.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TextIO

from triosim.engine import Recording
from triosim.engine.recording import matched_sends
from triosim.errors import OptionError
from triosim.networks.extensions import LinkRecorder
from triosim.output_files import PathLike, writing_text
from triosim.reports.tracks import INSTANTS, NETWORK_IN, NETWORK_OUT, TrackNumbers, Tracks, operator_spans, stream_of
from triosim.reports.transfer_names import Transfer, begin_of, layer_names, sent_bytes, transfer_name
from triosim.results.report import Report
from triosim.results.result import Result
from triosim.tasks import Batch, Collective, Compute, Copy, Handle, Recv, Send
from triosim.trace import Operator
from triosim.units import as_microseconds, format_bytes, format_ranks, slice_times, whole_nanoseconds

if TYPE_CHECKING:
    from triosim.networks.base import Network
    from triosim.networks.extensions import LinkRate
    from triosim.networks.topology import Topology

#: A viewer becomes slow beyond some hundred thousand events; what is left out is said in the file's ``otherData``.
MAX_FLOWS = 20_000
MAX_COUNTER_EVENTS = 200_000
MAX_COUNTER_LINKS = 100

#: How many numbers the tracks of a process have, so that no two tracks of a file share one.
TRACKS = 1000


class Timeline(Report):
    """A run for Perfetto; its result holds the handles of all tasks."""

    records = ("timeline",)

    def write(self, result: Result, path: PathLike) -> None:
        """Write the timeline. Raises ``OptionError`` where it was not recorded."""
        recording, topology = result.recording, result.topology
        if recording is None or recording.handles is None or topology is None:
            raise OptionError("this result holds no timeline", fix="simulate with timeline=True")
        write_timeline(recording, topology, result.network, path, title=result.title)


def write_timeline(
    recording: Recording, topology: Topology, network: Network | None, path: PathLike, *, title: str = "triosim"
) -> None:
    """Write a recorded run; the recording holds its tasks' handles."""
    with writing_text(path) as file:
        _EventWriter(file, topology, title).write(recording, network)


class _EventWriter:
    """Writes trace events to a file as they are made, and numbers processes and tracks."""

    def __init__(self, file: TextIO, topology: Topology, title: str) -> None:
        self.file = file
        self.topology = topology
        self.title = title
        self.first = True
        self.arrows = 0
        # GPUs come first, then switches and hosts, then the links. Process and track 0 mean the idle task to Perfetto, and a
        # track with the number of a process its main thread.
        others = [name for name, node in topology.nodes.items() if node.kind != "gpu"]
        self.processes = {name: number for number, name in enumerate((*topology.gpus, *others), 1)}
        self.gpus = frozenset(topology.gpus)
        self.link_process = len(self.processes) + 1
        self.tracks: dict[int, Tracks] = {}
        self.begins: dict[int, int] = {}  # of each track's first slice
        # What slices of one operator, or of one task, have in common; by id(), since the recording keeps them all.
        self.operators: dict[int, str] = {}
        self.transfers: dict[tuple[int, int], str] = {}
        self.left_out: Counter[str] = Counter()

    def write(self, recording: Recording, network: Network | None) -> None:
        """Write the whole file."""
        self.file.write('{"displayTimeUnit":"ms","traceEvents":[\n')
        by_rank: dict[int, list[Handle]] = {}
        for handle in recording.handles or ():
            if handle.finished is not None:
                by_rank.setdefault(handle.rank, []).append(handle)
        placed: dict[Handle, int] = {}
        flows = self._shown_flows(network, by_rank)
        ends = {node for flow in flows for node in (flow.source, flow.destination)}
        for name, process in self.processes.items():
            streams = {stream_of(handle.task) for handle in by_rank.get(process - 1, ()) if name in self.gpus}
            network_streams = (NETWORK_OUT, NETWORK_IN) if name in ends else ()
            numbers = TrackNumbers((*streams, INSTANTS, *network_streams), process * TRACKS)
            self.tracks[process] = Tracks(numbers)
        for rank in sorted(by_rank):
            self._rank(rank, by_rank[rank], placed)
        for sender, receiver in matched_sends(by_rank):
            if sender in placed and receiver in placed:
                self._arrow(
                    (sender.rank + 1, placed[sender], _ns(sender.started)),
                    (receiver.rank + 1, placed[receiver], max(_ns(receiver.started), _ns(receiver.finished) - 1)),
                    "send",
                )
        self._flows(flows)
        if isinstance(network, LinkRecorder):
            self._counters(network.rates)
        self._names()
        other = json.dumps(
            {"title": self.title, **{f"left out: {what}": count for what, count in self.left_out.items()}}
        )
        self.file.write(f'\n],"otherData":{other}}}\n')

    # ---- tasks --------------------------------------------------------------------------------------------------

    def _rank(self, rank: int, handles: list[Handle], placed: dict[Handle, int]) -> None:
        process = rank + 1
        tracks = self.tracks[process]
        instants: dict[int, list[str]] = {}
        for handle in sorted(handles, key=begin_of):
            task = handle.task
            if isinstance(task, Compute):
                start, end = _ns(handle.started), _ns(handle.finished)
                track = tracks.track(stream_of(task), start, end) if end > start else 0
                for operator, begin, done in operator_spans(handle):
                    if done > begin:
                        self._slice(process, track, begin, done, self._operator(operator))
                    else:
                        instants.setdefault(begin, []).append(f"{operator.name} of {operator.layer}")
            elif isinstance(task, Transfer):
                start, met, end = _ns(handle.arrived), _ns(handle.started), _ns(handle.finished)
                if end == start:
                    instants.setdefault(start, []).append(task.label or type(task).__name__)
                    continue
                placed[handle] = track = tracks.track(stream_of(task), start, end)
                key = id(task), met - start
                if key not in self.transfers:
                    self.transfers[key] = _transfer(task, met - start)
                self._slice(process, track, start, end, self.transfers[key])
                if met > start:
                    self._slice(process, track, start, met, '"name":"waiting","cat":"waiting"')
        for moment in sorted(instants):
            self._instant(process, moment, instants[moment])

    def _operator(self, operator: Operator) -> str:
        text = self.operators.get(id(operator))
        if text is None:
            args = {"layer": operator.layer, "phase": operator.phase, "operator": operator.id}
            if operator.flops is not None:
                args["flops"] = operator.flops
            text = f'"name":{json.dumps(operator.name)},"cat":"{operator.phase}","args":{json.dumps(args)}'
            self.operators[id(operator)] = text
        return text

    # ---- the network --------------------------------------------------------------------------------------------

    def _shown_flows(self, network: Network | None, by_rank: Mapping[int, list[Handle]]) -> list[Any]:
        """Return the finished flows to and from the ranks that are shown, at most ``MAX_FLOWS``; count the others."""
        if not isinstance(network, LinkRecorder):
            return []
        shown = {self.topology.gpus[rank] for rank in by_rank}
        flows = [
            flow for flow in network.flows
            if flow.finished is not None and (len(shown) == len(self.gpus) or {flow.source, flow.destination} & shown)
        ]  # fmt: skip
        flows.sort(key=lambda flow: flow.started)
        if len(flows) > MAX_FLOWS:
            self.left_out["flows"] = len(flows) - MAX_FLOWS
        return flows[:MAX_FLOWS]

    def _flows(self, flows: Iterable[Any]) -> None:
        """Show flows as slices where they leave and where they arrive, joined by an arrow if both are GPUs."""
        for flow in flows:
            start, end = _ns(flow.started), _ns(flow.finished)
            if end == start:
                continue
            args = json.dumps(
                {"bytes": flow.nbytes, "from": flow.source, "to": flow.destination, "links": list(flow.links)}
            )
            name = json.dumps(f"{flow.source} → {flow.destination}  {format_bytes(flow.nbytes)}", ensure_ascii=False)
            ends = []
            for node, stream in ((flow.source, NETWORK_OUT), (flow.destination, NETWORK_IN)):
                process = self.processes[node]
                track = self.tracks[process].track(stream, start, end)
                self._slice(process, track, start, end, f'"name":{name},"cat":"flow","args":{args}')
                ends.append((process, track))
            if {flow.source, flow.destination} <= self.gpus:
                self._arrow((*ends[0], start), (*ends[1], max(start, end - 1)), "flow")

    def _counters(self, rates: Iterable[LinkRate]) -> None:
        """Show the busiest links' utilisation in percent; of changes at one instant the last counts."""
        changes: dict[str, list[tuple[int, float]]] = {}
        taken: dict[str, float] = {}
        last: dict[str, tuple[float, float]] = {}
        for time, name, _, share in rates:
            before, level = last.get(name, (time, 0.0))
            taken[name] = taken.get(name, 0.0) + (time - before) * level
            last[name] = (time, share)
            points = changes.setdefault(name, [])
            if points and points[-1][0] == _ns(time):
                points.pop()
            points.append((_ns(time), share))
        order = list(self.topology.links)
        busiest = sorted(changes, key=lambda name: -taken[name])
        if len(busiest) > MAX_COUNTER_LINKS:
            self.left_out["links"] = len(busiest) - MAX_COUNTER_LINKS
        room = MAX_COUNTER_EVENTS
        for name in sorted(busiest[:MAX_COUNTER_LINKS], key=order.index):
            points = changes[name]
            if len(points) > room:
                self.left_out["changes of a link's rate"] += len(points) - room
            label = json.dumps(f"{name} utilisation")
            for time, share in points[:room]:
                value = json.dumps(round(100 * share, 4))
                self._event(
                    f'"ph":"C","name":{label},"pid":{self.link_process},"ts":{as_microseconds(time)},"args":{{"%":{value}}}'
                )
            room -= min(room, len(points))
        if changes:
            self.processes["links"] = self.link_process

    # ---- events -------------------------------------------------------------------------------------------------

    def _names(self) -> None:
        gpus = len(self.topology.gpus)
        for name, process in self.processes.items():
            tracks = self.tracks[process].names if process in self.tracks else {}
            if not tracks and process != self.link_process:
                continue
            label = json.dumps(f"GPU {process - 1} ({name})" if process <= gpus else name)
            self._event(f'"ph":"M","name":"process_name","pid":{process},"args":{{"name":{label}}}')
            self._event(f'"ph":"M","name":"process_sort_index","pid":{process},"args":{{"sort_index":{process}}}')
            for order, (track, stream) in enumerate(tracks.items()):
                where = f'"pid":{process},"tid":{track}'
                self._event(f'"ph":"M","name":"thread_name",{where},"args":{{"name":{json.dumps(stream)}}}')
                self._event(f'"ph":"M","name":"thread_sort_index",{where},"args":{{"sort_index":{order}}}')

    def _slice(self, process: int, track: int, start: int, end: int, what: str) -> None:
        times = slice_times(start, end, self.begins.setdefault(track, start))
        self._event(f'"ph":"X","pid":{process},"tid":{track},{times},{what}')

    def _instant(self, process: int, moment: int, names: list[str]) -> None:
        """Show what took no time, such as views, on a track of its own: viewers draw stacks of slices without length."""
        track = self.tracks[process].track(INSTANTS, moment, moment)
        label = names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
        where = f'"pid":{process},"tid":{track},"ts":{as_microseconds(moment)}'
        what = f'"name":{json.dumps(label)},"cat":"instant","args":{json.dumps({"all": ", ".join(names)})}'
        self._event(f'"ph":"i","s":"t",{where},{what}')

    def _arrow(self, source: tuple[int, int, int], destination: tuple[int, int, int], category: str) -> None:
        """Draw an arrow from one slice to another, each named by its process, its track and a time within it."""
        self.arrows += 1
        for phase, (process, track, time) in (('"s"', source), ('"f","bp":"e"', destination)):
            what = f'"ph":{phase},"name":"{category}","cat":"{category}","id":{self.arrows}'
            self._event(f'{what},"pid":{process},"tid":{track},"ts":{as_microseconds(time)}')

    def _event(self, body: str) -> None:
        self.file.write(f"{{{body}}}" if self.first else f",\n{{{body}}}")
        self.first = False


def _transfer(task: Transfer, waiting: int) -> str:
    args: dict[str, Any] = {"waiting_us": waiting / 1000}
    if isinstance(task, Collective):
        args |= {"bytes": task.nbytes, "group": format_ranks(task.group.ranks), "axis": task.group.name}
    elif isinstance(task, Send):
        args |= {"bytes": task.nbytes, "to": task.destination, "tag": task.tag}
    elif isinstance(task, Recv):
        args |= {"from": task.source, "tag": task.tag}
    elif isinstance(task, Batch):
        sends = sum(isinstance(part, Send) for part in task.parts)
        args |= {"bytes": sent_bytes(task), "sends": sends, "receives": len(task.parts) - sends}
    else:
        args |= {"bytes": task.nbytes, "from": task.source, "to": task.destination}
    if task.layers is not None:
        args["layers"] = layer_names(task.layers)
    if task.label:
        args["label"] = task.label
    category = "host computation" if isinstance(task, Copy) and task.is_host_computation else "communication"
    return f'"name":{json.dumps(transfer_name(task))},"cat":"{category}","args":{json.dumps(args)}'


def _ns(seconds: float | None) -> int:
    return whole_nanoseconds(seconds or 0.0)
