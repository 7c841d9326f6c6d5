"""The result of a simulation: its values, as pandas tables and as ``result.json``, and the reports that are written of it.

All figures are for one step: the run's, divided by its number of iterations.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from triosim.errors import OptionError, TriosimError, printable
from triosim.networks.extensions import LinkRecorder
from triosim.output_files import PathLike, writing_text
from triosim.results.figure_rows import COLUMNS as FIGURE_COLUMNS
from triosim.results.figure_rows import figure_rows
from triosim.results.link_loads import edges, loads
from triosim.results.loading import read_result
from triosim.results.report import Reportable
from triosim.results.values import (
    ROWS,
    AxisTraffic,
    CollectiveTimes,
    Draws,
    ExposedShare,
    LayerShare,
    LayerTimes,
    LinkLoad,
    Metrics,
    OperatorTimes,
    Prediction,
    RankTimes,
    ResultData,
    WhatIf,
    mean_of_ranks,
    step_of,
    step_parts,
)
from triosim.units import format_rate, format_time, parse_ranks

if TYPE_CHECKING:
    import pandas as pd

    from triosim.engine import Recording
    from triosim.memory.world_memory import WorldMemory
    from triosim.networks.base import Network
    from triosim.networks.topology import Topology
    from triosim.trace.step_facts import StepFacts


@dataclass(frozen=True)
class Result(Reportable):
    """A simulation's result: plain values under ``data``, pandas tables as attributes, files and pictures by methods.

    A result that was just simulated also knows when each rank did what, and so can draw a timeline and a Gantt chart;
    one that was loaded from a file does not.
    """

    subject = "result"
    data: ResultData
    recording: Recording | None = field(default=None, compare=False)
    topology: Topology | None = field(default=None, compare=False)
    network: Network | None = field(default=None, compare=False)
    memory: WorldMemory | None = field(default=None, compare=False)  # None where it comes from a file
    facts: StepFacts | None = field(default=None, compare=False)  # that files of the step say of it

    # ---- the main figures ---------------------------------------------------------------------------------------

    @property
    def step_time_s(self) -> float:
        """Seconds of one step: the run's time over its number of iterations."""
        return self.data.step_time_s

    @property
    def step_time_interval_s(self) -> tuple[float, float] | None:
        """The 90% interval of the step time; None where nothing was predicted."""
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
        """Assumptions and doubts that a reader of the figures should know."""
        return self.data.notes

    @property
    def inputs(self) -> Mapping[str, Any]:
        """Everything needed to run it again: versions, options, hashes of the files."""
        return self.data.inputs

    # ---- pandas -------------------------------------------------------------------------------------------------

    def to_pandas(self) -> pd.DataFrame:
        """Return every figure as a row with the columns table, item, quantity, value and unit, as in ``to_csv``."""
        frame: pd.DataFrame = load_pandas().DataFrame(figure_rows(self.data), columns=list(FIGURE_COLUMNS))
        return frame

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
        rows = [
            {"rank": rank, "layer": layer.layer, **{name: getattr(share, name) for name in _columns(LayerShare)[1:]}}
            for layer in self.data.layers
            for share in layer.per_rank
            for rank in parse_ranks(share.ranks)
        ]
        rows.sort(key=lambda row: row["rank"])
        frame: pd.DataFrame = load_pandas().DataFrame(rows, columns=["rank", "layer", *_columns(LayerShare)[1:]])
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
        recording, network = self.recorded_links()
        bounds = edges(recording.end, slots)
        found = {name: load.carried(bounds) for name, load in loads(network.rates, recording.end).items()}
        frame: pd.DataFrame = load_pandas().DataFrame(found, index=load_pandas().Index(bounds[:-1], name="start_s"))
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
            elif key == "recorded":  # large
                text = json.dumps(value, allow_nan=False, separators=(",", ":"))
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
        return cls(read_result(Path(path)))

    # ---- reports ------------------------------------------------------------------------------------------------

    def to_csv(self, path: PathLike) -> None:
        """Write every figure as a row ``table,item,quantity,value,unit``."""
        self.write("csv", path)

    def to_parquet(self, path: PathLike) -> None:
        """Write the rows of ``to_csv`` as a Parquet file."""
        self.write("parquet", path)

    def to_arrow(self, path: PathLike) -> None:
        """Write the rows of ``to_csv`` as an Arrow file."""
        self.write("arrow", path)

    def save_timeline(self, path: PathLike) -> None:
        """Write the run for Perfetto or chrome://tracing (compressed where the name ends in ``.gz``)."""
        self.write("timeline", path)

    def save_kineto(self, folder: PathLike) -> None:
        """Write ``rank-N.json.gz`` for each rank: the run as PyTorch's profiler would have recorded it."""
        self.write("kineto", folder)

    def save_report(self, path: PathLike) -> None:
        """Write a page (.html): where the time goes, a timeline to zoom and search, memory and links over time.

        What the result did not record (simulate with ``timeline=True, links=True``) is named in it.
        """
        self.write("page", path)

    def plot(self, path: PathLike) -> None:
        """Write a picture: when each rank computed and communicated, and what its step time consists of."""
        self.write("plot", path)

    def plot_links(self, path: PathLike) -> None:
        """Write a heat map: the topology, each link as hot as it was loaded, and the links' load over time.

        Raises ``OptionError`` where loads were not recorded, or nothing was sent.
        """
        self.write("link-plot", path)

    def recorded_links(self) -> tuple[Recording, LinkRecorder]:
        """Return the recording, and the network that knows each link's rate over time.

        Raises ``OptionError`` where they were not recorded.
        """
        if self.recording is None or not isinstance(self.network, LinkRecorder) or not self.network.record:
            fix = "simulate with links=True, on a network that has some"
            raise OptionError("this result holds no link loads", fix=fix)
        return self.recording, self.network

    # ---- for reading --------------------------------------------------------------------------------------------

    @property
    def title(self) -> str:
        """One line that says what was simulated: ``vgg13, ddp on 8 x H100, dgx-h100``."""
        trace = self.inputs.get("trace", {})
        gpus = f"{self.world} x {trace.get('gpu', 'GPU')}" if self.world > 1 else f"1 {trace.get('gpu', 'GPU')}"
        topology = self.inputs.get("topology", {}).get("name", "")
        where = f", {topology}" if topology and self.world > 1 else ""
        return f"{trace.get('model', 'model')}, {self.inputs.get('parallel', 'simulated')} on {gpus}{where}"

    def __repr__(self) -> str:
        mean = mean_of_ranks(self.data.ranks, 0)
        whole = step_of(mean) or 1.0
        parts = ", ".join(f"{part.name} {part.seconds(mean) / whole:.1%}" for part in step_parts([mean]))
        rate = format_rate(self.throughput_samples_per_s)
        return (
            f"<Result of {printable(self.title)}: {format_time(self.step_time_s)} a step, {rate} samples/s\n"
            f" {parts}; print it for all tables>"
        )


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
    frame: pd.DataFrame = load_pandas().DataFrame(
        {name: [getattr(row, name) for row in rows] for name in names}, columns=names
    )
    return frame


def load_pandas() -> Any:
    """Return the module pandas. Raises ``TriosimError`` where it is not installed."""
    try:
        import pandas
    except ImportError:
        fix = "pip install 'triosim[pandas]', or read the rows in result.data"
        raise TriosimError("tables need pandas", fix=fix) from None
    return pandas
