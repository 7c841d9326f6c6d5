"""What a simulation comes to: the times of a step by rank, layer, operator, collective and link, and what was put in.

All figures are for one step: the run's, divided by its number of iterations. A rank's step time is its busy compute time
plus its exposed communication plus its idle time. ``result.json`` is ``Result.to_dict()``, described by
``triosim/reports/result.schema.json``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from triosim.errors import OptionError, TriosimError
from triosim.output_files import PathLike, writing_text
from triosim.results.draws import Draws
from triosim.results.metrics import AxisTraffic, MetricOptions, Metrics, PlaceMemory, Prediction

if TYPE_CHECKING:
    import pandas as pd

    from triosim.engine.recording import Recording
    from triosim.memory.world import WorldMemory
    from triosim.networks.base import Network
    from triosim.networks.topology import Topology
    from triosim.results.collect import Inputs, Plan
    from triosim.trace import Trace

SCHEMA = "triosim-result/1"


@dataclass(frozen=True, slots=True)
class RankTimes:
    """One rank's step, in seconds.

    ``compute_s`` is the sum of its operators' times; ``communication_s`` runs from its arrival at each transfer until
    that is through, ``waiting_s`` of it before the last partner arrived; in ``exposed_communication_s`` of it the rank
    computes nothing; in ``idle_s`` it does neither.
    """

    rank: int
    compute_s: float
    communication_s: float
    exposed_communication_s: float
    idle_s: float
    waiting_s: float


@dataclass(frozen=True, slots=True)
class LayerShare:
    """A layer's step on each of ``ranks``, which all spend the same on it ("0-3,8" is 0, 1, 2, 3 and 8)."""

    ranks: str
    forward_s: float
    backward_s: float
    optimizer_s: float
    total_s: float
    operators: float


@dataclass(frozen=True, slots=True)
class LayerTimes:
    """A layer's step: the mean over the ranks that run it. ``operators`` is how many run, ``per_rank`` who runs them."""

    layer: str
    forward_s: float
    backward_s: float
    optimizer_s: float
    total_s: float
    operators: float
    per_rank: tuple[LayerShare, ...] = ()


@dataclass(frozen=True, slots=True)
class OperatorTimes:
    """All calls of one operator in one phase of a layer in a step: the mean over the ranks that run it."""

    name: str
    layer: str
    phase: str
    count: float
    total_s: float


@dataclass(frozen=True, slots=True)
class CollectiveTimes:
    """All transfers of one kind and size in a step, sends and copies among them.

    ``bytes`` is the size of one, ``count`` how many there are on all ranks (a collective counts once, not once a rank),
    ``total_s`` the sum of their times from the last arrival to the end; ``axis`` is what they belong to ("dp", "tp").
    """

    kind: str
    group_size: int
    bytes: float
    count: float
    total_s: float
    axis: str


@dataclass(frozen=True, slots=True)
class LinkLoad:
    """One direction of a link in a step. ``utilisation`` is its bytes over what it could carry in the step's time.

    The others are known where the loads were recorded, and of links that carried anything: ``peak`` is the largest part of
    the bandwidth that was taken at any time, ``busy_s`` how long it carried anything, and between ``busiest_from_s`` and
    ``busiest_to_s``, a fiftieth of the run, most of it was taken.
    """

    name: str
    bytes: float
    utilisation: float
    peak: float | None = None
    busy_s: float | None = None
    busiest_from_s: float | None = None
    busiest_to_s: float | None = None


@dataclass(frozen=True, slots=True)
class ExposedShare:
    """The exposed communication of one axis and layer in a step, the mean over all ranks; ``waiting_s`` of it moves no bytes.

    ``layer`` is whose tensors are on their way, empty where the task does not say.
    """

    axis: str
    layer: str
    exposed_s: float
    waiting_s: float


@dataclass(frozen=True, slots=True)
class WhatIf:
    """The step with one part of the system ``factor`` times as fast: ``links`` of them, or none where it is the GPUs.

    ``saved_s`` is how much less a step takes, ``speed_up`` how many times as fast it is.
    """

    what: str
    links: int
    factor: float
    step_time_s: float
    saved_s: float
    speed_up: float


@dataclass(frozen=True, slots=True)
class ResultData:
    """The plain values of a result, as they stand in ``result.json``. ``iterations`` are the times at which each ended.

    ``step_time_interval_s`` is between which times the step is expected, nine times in ten, by the errors of the predicted
    operators; None where all times are the trace's. ``launch_wait_s`` is the part of the step in which a GPU waits for the
    host to launch, the mean over the ranks. ``network_figures`` is what the network has counted in the whole run, by
    name; None where it counts nothing but bytes. ``exposed_communication`` adds up to the ranks' mean, the largest first.
    ``what_if`` are the steps of faster systems, where they were asked for. ``axes`` are those along which anything is sent;
    ``memory`` has a row for the ranks that have the same: at a place of the pipeline, or like a captured one. ``draws`` is how
    step times are spread, where several were asked for; all else is then of the first.
    """

    step_time_s: float
    throughput_samples_per_s: float
    global_batch_size: int
    iterations: tuple[float, ...]
    ranks: tuple[RankTimes, ...]
    layers: tuple[LayerTimes, ...]
    operators: tuple[OperatorTimes, ...]
    collectives: tuple[CollectiveTimes, ...]
    links: tuple[LinkLoad, ...]
    notes: tuple[str, ...]
    inputs: Mapping[str, Any]
    step_time_interval_s: tuple[float, float] | None = None
    predictions: tuple[Prediction, ...] = ()
    launch_wait_s: float = 0.0
    network_figures: Mapping[str, Any] | None = None
    exposed_communication: tuple[ExposedShare, ...] = ()
    what_if: tuple[WhatIf, ...] = ()
    metrics: Metrics | None = None
    axes: tuple[AxisTraffic, ...] = ()
    memory: tuple[PlaceMemory, ...] = ()
    draws: Draws | None = None
    schema: str = SCHEMA


#: What the rows of each list of ``result.json`` are.
ROWS: Mapping[str, type] = {
    "ranks": RankTimes,
    "layers": LayerTimes,
    "operators": OperatorTimes,
    "collectives": CollectiveTimes,
    "links": LinkLoad,
    "per_rank": LayerShare,
    "predictions": Prediction,
    "exposed_communication": ExposedShare,
    "what_if": WhatIf,
    "axes": AxisTraffic,
    "memory": PlaceMemory,
}


@dataclass(frozen=True)
class Result:
    """A simulation's result: plain values under ``data``, pandas tables as attributes, files and pictures by methods.

    A result that was just simulated also knows when each rank did what, and so can draw a timeline and a Gantt chart;
    one that was loaded from a file does not.
    """

    data: ResultData
    recording: Recording | None = field(default=None, repr=False, compare=False)
    topology: Topology | None = field(default=None, repr=False, compare=False)
    network: Network | None = field(default=None, repr=False, compare=False)
    memory: WorldMemory | None = field(default=None, repr=False, compare=False)  # None where it comes from a file

    @classmethod
    def from_recording(
        cls,
        recording: Recording,
        *,
        trace: Trace,
        plan: Plan,
        topology: Topology,
        network: Network,
        inputs: Inputs,
        notes: Sequence[str] = (),
        options: MetricOptions | None = None,
        memory: WorldMemory | None = None,
    ) -> Result:
        """Return what a run left behind as a result.

        ``notes`` are shown with those of the plan; ``options`` are what the metrics need beside the run.
        Raises ``SimulationError`` where nothing was computed.
        """
        from triosim.results.collect import collect

        data = collect(
            recording,
            trace=trace,
            plan=plan,
            topology=topology,
            network=network,
            inputs=inputs,
            notes=notes,
            options=options,
            memory=memory,
        )
        return cls(data, recording, topology, network, memory)

    # ---- the main figures ---------------------------------------------------------------------------------------

    @property
    def step_time_s(self) -> float:
        """Seconds of one step: the run's time over its number of iterations."""
        return self.data.step_time_s

    @property
    def step_time_interval_s(self) -> tuple[float, float] | None:
        """Between which times the step is expected, nine times in ten; None where no operator time was predicted."""
        return self.data.step_time_interval_s

    @property
    def throughput_samples_per_s(self) -> float:
        """Samples of the global batch per second."""
        return self.data.throughput_samples_per_s

    @property
    def world(self) -> int:
        """Number of ranks."""
        return len(self.data.ranks)

    @property
    def metrics(self) -> Metrics:
        """MFU, HFU, tokens per second, the bubble, energy, cost. Raises ``OptionError`` for a file of before there were any."""
        if self.data.metrics is None:
            raise OptionError("this result holds no metrics", fix="simulate again")
        return self.data.metrics

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the figures should know."""
        return self.data.notes

    @property
    def inputs(self) -> Mapping[str, Any]:
        """Everything needed to run it again: versions, options, hashes of the files."""
        return self.data.inputs

    # ---- pandas -------------------------------------------------------------------------------------------------

    @property
    def ranks(self) -> pd.DataFrame:
        """A row a rank, as in ``RankTimes``."""
        return _frame(self.data.ranks, RankTimes)

    @property
    def layers(self) -> pd.DataFrame:
        """A row a layer, in the order in which the model runs them, as in ``LayerTimes``."""
        return _frame(self.data.layers, LayerTimes)

    @property
    def layers_by_rank(self) -> pd.DataFrame:
        """A row for each rank and each layer that it runs."""
        from triosim.results.rank_ranges import parse_ranks

        rows = [
            {"rank": rank, "layer": layer.layer, **{name: getattr(share, name) for name in _columns(LayerShare)[1:]}}
            for layer in self.data.layers
            for share in layer.per_rank
            for rank in parse_ranks(share.ranks)
        ]
        rows.sort(key=lambda row: row["rank"])
        frame: pd.DataFrame = _pandas().DataFrame(rows, columns=["rank", "layer", *_columns(LayerShare)[1:]])
        return frame

    @property
    def operators(self) -> pd.DataFrame:
        """A row for each operator of each phase of each layer, as in ``OperatorTimes``."""
        return _frame(self.data.operators, OperatorTimes)

    @property
    def collectives(self) -> pd.DataFrame:
        """A row for each kind and size of transfer, as in ``CollectiveTimes``."""
        return _frame(self.data.collectives, CollectiveTimes)

    @property
    def predictions(self) -> pd.DataFrame:
        """A row a model, as in ``Prediction``; none where all times are the trace's."""
        return _frame(self.data.predictions, Prediction)

    @property
    def links(self) -> pd.DataFrame:
        """A row for each direction of each link, as in ``LinkLoad``; none for a network that has no links."""
        return _frame(self.data.links, LinkLoad)

    @property
    def exposed_communication(self) -> pd.DataFrame:
        """A row for each axis and layer with exposed communication, as in ``ExposedShare``."""
        return _frame(self.data.exposed_communication, ExposedShare)

    @property
    def axes(self) -> pd.DataFrame:
        """A row for each axis of communication, as in ``AxisTraffic``."""
        return _frame(self.data.axes, AxisTraffic)

    @property
    def what_if(self) -> pd.DataFrame:
        """A row for each part of the system that was made faster, as in ``WhatIf``."""
        return _frame(self.data.what_if, WhatIf)

    def link_loads(self, slots: int = 100) -> pd.DataFrame:
        """Return the bytes of each link (columns) in each of so many equal parts of the run (rows, by their start).

        A column sums to the bytes that the link carried in the run. Raises ``OptionError`` where loads were not recorded.
        """
        from triosim.results.link_loads import edges, loads

        recording, network = self._with_links()
        bounds = edges(recording.end, slots)
        found = {name: load.carried(bounds) for name, load in loads(network.rates, recording.end).items()}
        frame: pd.DataFrame = _pandas().DataFrame(found, index=_pandas().Index(bounds[:-1], name="start_s"))
        return frame

    # ---- files --------------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Return the result as ``result.json`` holds it."""
        values = {name: _plain(getattr(self.data, name)) for name in _columns(ResultData)}
        return {"schema": values.pop("schema"), **values}

    def to_json(self) -> str:
        """Return the text of ``result.json``: a line for each rank, layer, collective and link."""
        parts = []
        for key, value in self.to_dict().items():
            if key in ROWS and value:
                text = "[\n    " + ",\n    ".join(json.dumps(row, allow_nan=False) for row in value) + "\n  ]"
            else:
                text = json.dumps(value, allow_nan=False, indent=2).replace("\n", "\n  ")
            parts.append(f'  "{key}": {text}')
        return "{\n" + ",\n".join(parts) + "\n}\n"

    def save(self, path: PathLike) -> None:
        """Write ``result.json`` (compressed where the name ends in ``.gz``)."""
        with writing_text(path) as file:
            file.write(self.to_json())

    @classmethod
    def load(cls, path: PathLike) -> Result:
        """Read a ``result.json``. Raises ``TriosimError`` that names the file and the key."""
        from triosim.results.loading import read_result

        return cls(read_result(Path(path)))

    def to_csv(self, path: PathLike) -> None:
        """Write every figure as a row ``table,item,quantity,value,unit``."""
        from triosim.reports.files.csv_table import write_csv

        write_csv(self.data, path)

    def save_timeline(self, path: PathLike) -> None:
        """Write the run for Perfetto or chrome://tracing (compressed where the name ends in ``.gz``)."""
        from triosim.reports.files.timeline import write_timeline

        if self.recording is None or self.recording.handles is None or self.topology is None:
            raise OptionError("this result holds no timeline", fix="simulate with timeline=True")
        write_timeline(self.recording, self.topology, self.network, path, title=self.title)

    def plot(self, path: PathLike) -> None:
        """Write a picture: when each rank computed and communicated, and what its step time consists of."""
        from triosim.reports.pictures.plot import write_plot

        write_plot(self, path)

    def plot_links(self, path: PathLike) -> None:
        """Write a heat map: the topology, each link as hot as it was loaded, and the links' load over time.

        Raises ``OptionError`` where loads were not recorded, or nothing was sent.
        """
        from triosim.reports.pictures.link_plot import write_link_plot

        recording, network = self._with_links()
        write_link_plot(network.rates, network.topology, recording.end, path, title=self.title)

    def _with_links(self) -> tuple[Recording, Network]:
        if self.recording is None or self.network is None or not self.network.record:
            raise OptionError(
                "this result holds no loads of links", fix="simulate with links=True, on a network that has some"
            )
        return self.recording, self.network

    # ---- for reading --------------------------------------------------------------------------------------------

    @property
    def title(self) -> str:
        """One line that says what was simulated: ``vgg13, ddp on 8 x H100, dgx-h100``."""
        trace, options = self.inputs.get("trace", {}), self.inputs.get("options", {})
        gpus = f"{self.world} x {trace.get('gpu', 'GPU')}" if self.world > 1 else f"1 {trace.get('gpu', 'GPU')}"
        topology = self.inputs.get("topology", {}).get("name", "")
        where = f", {topology}" if topology and self.world > 1 else ""
        return f"{trace.get('model', 'model')}, {options.get('parallel', 'simulated')} on {gpus}{where}"

    def __str__(self) -> str:
        from triosim.reports.terminal.result_tables import as_text

        return as_text(self.data, self.title)

    def _repr_html_(self) -> str:
        from triosim.reports.files.html import as_html

        return as_html(self.data, self.title)


def _columns(kind: type) -> list[str]:
    return [column.name for column in fields(kind)]


def _plain(value: Any) -> Any:
    """Return dataclasses, tuples and mappings as JSON has them."""
    if value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)  # an option may be infinite, a figure never is
    if type(value) in (Metrics, Draws, *ROWS.values()):  # what is not known of a row is left out
        return {name: _plain(item) for name in _columns(type(value)) if (item := getattr(value, name)) is not None}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    return str(value)


def _frame(rows: tuple[Any, ...], kind: type) -> pd.DataFrame:
    names = [name for name in _columns(kind) if name != "per_rank"]
    frame: pd.DataFrame = _pandas().DataFrame(
        {name: [getattr(row, name) for row in rows] for name in names}, columns=names
    )
    return frame


def _pandas() -> Any:
    try:
        import pandas
    except ImportError:
        raise TriosimError(
            "tables need pandas", fix="pip install 'triosim[pandas]', or read the rows in result.data"
        ) from None
    return pandas
