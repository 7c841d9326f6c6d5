"""The report ``csv``: every figure of a result as a row ``table,item,quantity,value,unit``, for a spreadsheet."""

from __future__ import annotations

import csv
from collections.abc import Iterator

from triosim.output_files import PathLike, writing_text
from triosim.results.report import Report
from triosim.results.result import Result
from triosim.results.values import ResultData

HEADER = ("table", "item", "quantity", "value", "unit")
Row = tuple[str, str, str, float, str]


#: The name and the unit of each metric that is a number.
_METRICS = {
    "samples_per_s_per_gpu": ("throughput_per_gpu", "samples/s"),
    "tokens_per_sample": ("tokens_per_sample", ""),
    "tokens_per_s": ("tokens", "1/s"),
    "tokens_per_s_per_gpu": ("tokens_per_gpu", "1/s"),
    "model_flops": ("model_flops", ""),
    "hardware_flops": ("hardware_flops", ""),
    "peak_flops": ("peak_flops", "1/s"),
    "mfu": ("mfu", ""),
    "hfu": ("hfu", ""),
    "bubble_fraction": ("bubble_fraction", ""),
    "energy_j": ("energy", "J"),
    "price_per_gpu_hour": ("price_per_gpu_hour", ""),
    "cost": ("cost", ""),
}


class Csv(Report):
    """All figures of a result in one CSV file (RFC 4180, with a header; compressed where the name ends in .gz)."""

    def write(self, result: Result, path: PathLike) -> None:
        """Write every figure as a row."""
        with writing_text(path) as file:
            writer = csv.writer(file, lineterminator="\r\n")
            writer.writerow(HEADER)
            writer.writerows(rows(result.data))


def rows(data: ResultData) -> Iterator[Row]:
    """Yield each figure: of the step, of each rank, layer, layer on a rank, operator, transfer and link."""
    yield "step", "", "step_time", data.step_time_s, "s"
    yield "step", "", "throughput", data.throughput_samples_per_s, "samples/s"
    yield "step", "", "global_batch_size", data.global_batch_size, "samples"
    yield "step", "", "launch_wait", data.launch_wait_s, "s"
    if data.step_time_interval_s is not None:
        for name, bound in zip(("low", "high"), data.step_time_interval_s, strict=True):
            yield "step", "", f"step_time_{name}", bound, "s"
    if data.draws is not None:
        for number, seconds in enumerate(data.draws.step_times_s):
            yield "draw", str(number), "step_time", seconds, "s"
        for name in ("mean", "deviation", "min", "p5", "p50", "p95", "max"):
            yield "draws", "", name, getattr(data.draws, f"{name}_s"), "s"
    for name, value in (data.network_figures or {}).items():
        yield "network", "", name.removesuffix("_s"), value, "s" if name.endswith("_s") else ""
    if data.metrics is not None:
        for metric, (name, unit) in _METRICS.items():
            value = getattr(data.metrics, metric)
            if value is not None:
                yield "metric", "", name, value, unit
    for axis in data.axes:
        for name, unit in (("bytes", "B"), ("transfers", ""), ("exposed_s", "s"), ("waiting_s", "s")):
            yield "axis", axis.axis, name.removesuffix("_s"), getattr(axis, name), unit
    for prediction in data.predictions:
        yield "prediction", prediction.model, "operators", prediction.operators, ""
        yield "prediction", prediction.model, "total", prediction.seconds, "s"
        yield "prediction", prediction.model, "relative_error", prediction.relative_error, ""
    for number, end in enumerate(data.iterations):
        yield "iteration", str(number), "end", end, "s"
    for rank in data.ranks:
        for name in ("compute", "communication", "exposed_communication", "idle", "waiting"):
            yield "rank", str(rank.rank), name, getattr(rank, f"{name}_s"), "s"
    for layer in data.layers:
        yield from _layer("layer", layer.layer, layer)
        for share in layer.per_rank:
            yield from _layer("layer_on_ranks", f"{layer.layer} on {share.ranks}", share)
    for operator in data.operators:
        item = f"{operator.layer}/{operator.name}/{operator.phase}"
        yield "operator", item, "total", operator.total_s, "s"
        yield "operator", item, "count", operator.count, ""
    for row in data.collectives:
        item = f"{row.kind}/{row.axis}/{row.group_size} ranks/{row.bytes} B"
        yield "transfer", item, "count", row.count, ""
        yield "transfer", item, "total", row.total_s, "s"
    for link in data.links:
        yield "link", link.name, "bytes", link.bytes, "B"
        yield "link", link.name, "utilisation", link.utilisation, ""
        for name, unit in (("peak", ""), ("busy_s", "s"), ("busiest_from_s", "s"), ("busiest_to_s", "s")):
            value = getattr(link, name)
            if value is not None:
                yield "link", link.name, name.removesuffix("_s"), value, unit
    for change in data.what_if:
        yield "what_if", change.what, "step_time", change.step_time_s, "s"
        yield "what_if", change.what, "speed_up", change.speed_up, ""
    for part in data.exposed_communication:
        item = f"{part.axis}/{part.layer}"
        yield "exposed_communication", item, "exposed", part.exposed_s, "s"
        yield "exposed_communication", item, "waiting", part.waiting_s, "s"


def _layer(kind: str, item: str, layer: object) -> Iterator[Row]:
    for name in ("forward", "backward", "optimizer", "total"):
        yield kind, item, name, getattr(layer, f"{name}_s"), "s"
