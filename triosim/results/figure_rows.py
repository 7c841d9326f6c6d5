"""Every figure of a result as a row ``table,item,quantity,value,unit``, for spreadsheets, data frames and columnar files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

from triosim.results.values import RankTimes, ResultData

COLUMNS = ("table", "item", "quantity", "value", "unit")
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
_LAYER = ("forward_s", "backward_s", "optimizer_s", "total_s")
#: The quantities of each kind of row, by the names of their fields: seconds end in ``_s``; None is left out.
_QUANTITIES: dict[str, tuple[str, ...]] = {
    "axis": ("bytes", "transfers", "exposed_s", "waiting_s", "host_s"),
    "doubt": ("error_s", "share"),
    "rank": tuple(column.name for column in fields(RankTimes)[1:]),
    "layer": _LAYER,
    "layer_on_ranks": _LAYER,
    "operator": ("total_s", "count"),
    "transfer": ("count", "total_s"),
    "link": ("bytes", "utilisation", "peak", "busy_s", "busiest_from_s", "busiest_to_s"),
    "what_if": ("step_time_s", "speed_up"),
    "exposed_communication": ("exposed_s", "waiting_s", "host_s"),
}


def figure_rows(data: ResultData) -> Iterator[Row]:
    """Yield each figure: of the step, of each rank, layer, layer on a rank, operator, transfer and link."""
    yield "step", "", "step_time", data.step_time_s, "s"
    yield "step", "", "throughput", data.throughput_samples_per_s, "samples/s"
    yield "step", "", "global_batch_size", data.global_batch_size, "samples"
    yield "step", "", "launch_wait", data.launch_wait_s, "s"
    yield "step", "", "launches", data.launches_s, "s"
    for name, bound in zip(("low", "high"), data.step_time_interval_s or (), strict=False):
        yield "step", "", f"step_time_{name}", bound, "s"
    if data.draws is not None:
        for number, seconds in enumerate(data.draws.step_times_s):
            yield "draw", str(number), "step_time", seconds, "s"
        for name in ("mean", "deviation", "min", "p5", "p50", "p95", "max"):
            yield "draws", "", name, getattr(data.draws, f"{name}_s"), "s"
    for name, value in (data.network_figures or {}).items():
        yield "network", "", name.removesuffix("_s"), value, "s" if name.endswith("_s") else ""
    for metric, (name, unit) in _METRICS.items():
        value = getattr(data.metrics, metric, None)
        if value is not None:
            yield "metric", "", name, value, unit
    for axis in data.axes:
        yield from _row("axis", axis.axis, axis)
    for prediction in data.predictions:
        yield "prediction", prediction.model, "operators", prediction.operators, ""
        yield "prediction", prediction.model, "total", prediction.seconds, "s"
        yield "prediction", prediction.model, "relative_error", prediction.relative_error, ""
    for doubt in data.doubts:
        yield from _row("doubt", doubt.source, doubt)
    for number, end in enumerate(data.iterations):
        yield "iteration", str(number), "end", end, "s"
    for rank in data.ranks:
        yield from _row("rank", str(rank.rank), rank)
    for layer in data.layers:
        yield from _row("layer", layer.layer, layer)
        for share in layer.per_rank:
            yield from _row("layer_on_ranks", f"{layer.layer} on {share.ranks}", share)
    for operator in data.operators:
        yield from _row("operator", f"{operator.layer}/{operator.name}/{operator.phase}", operator)
    for row in data.collectives:
        yield from _row("transfer", f"{row.kind}/{row.axis}/{row.group_size} ranks/{row.bytes} B", row)
    for link in data.links:
        yield from _row("link", link.name, link)
    for change in data.what_if:
        yield from _row("what_if", change.what, change)
    for part in data.exposed_communication:
        yield from _row("exposed_communication", f"{part.axis}/{part.layer}", part)


def _row(table: str, item: str, values: object) -> Iterator[Row]:
    for name in _QUANTITIES[table]:
        value = getattr(values, name)
        if value is not None:
            unit = "s" if name.endswith("_s") else "B" if name == "bytes" else ""
            yield table, item, name.removesuffix("_s"), value, unit
