"""The sections of a result's page: headings, sentences and tables in HTML, with places for the charts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from triosim.reports.page.document import Section, chart, details, listed, table, text
from triosim.results.command import command_of
from triosim.results.memory_rows import GIB
from triosim.results.result import Result
from triosim.results.values import NO_LAYER, ResultData, mean_of_ranks, step_of, step_parts
from triosim.units import format_bytes, format_rate, format_time


def sections(result: Result, page: Mapping[str, Any]) -> Iterator[Section]:
    """Yield the sections that the result has something for; ``page`` are the values that the charts are drawn from."""
    data = result.data
    yield Section("time", "Where the time goes", chart("parts", "The parts of a step by GPU") + _ranks(data))
    if page["timeline"] or not data.steps:  # no option keeps that of a script in its file
        yield Section("when", "Timeline", _timeline(page))
    if data.memory:
        yield Section("memory", "Memory", _memory(data, page))
    if data.links or page["link_loads"]:
        yield Section("links", "Links", _links(data, page))
    if data.layers:
        yield Section(
            "layers", "Layers", chart("layer-bars", "The slowest layers") + details("All figures", _layers(data))
        )
    if data.what_if:
        yield Section("what-if", "What if a part were faster?", chart("what-if-bars", "Steps of faster systems"))
    yield Section("trust", "How sure it is", _trust(data))
    yield Section("assumptions", "Assumptions and notes", _notes(data))
    yield Section("again", "The command that makes it again", f"<pre>{text(command_of(result))}</pre>")


def sentence(data: ResultData) -> str:
    """Return the step in a sentence."""
    mean = mean_of_ranks(data.ranks, 0)
    *spent, last = (f"{part.sentence} {part.seconds(mean) / (step_of(mean) or 1.0):.1%}" for part in step_parts([mean]))
    mfu = data.metrics.mfu if data.metrics is not None else None
    parts = [
        f"A step takes {format_time(data.step_time_s)}",
        *([] if data.step_time_interval_s is None else [_interval(data.step_time_interval_s)]),
        f", {format_rate(data.throughput_samples_per_s)} samples a second",
        "" if mfu is None else f" at an MFU of {mfu:.1%}",
        f": of it the average GPU {', '.join(spent)}, and {last}.",
    ]
    if data.memory:
        fullest = max(data.memory, key=lambda row: row.peak_bytes)
        room = "" if fullest.capacity_bytes is None else f" of {fullest.capacity_bytes / GIB:.3g}"
        parts.append(f" The fullest GPU holds {fullest.peak_bytes / GIB:.3g}{room} GiB.")
    return "".join(parts)


def _interval(bounds: tuple[float, float]) -> str:
    low, high = bounds
    return f" ({format_time(low)} to {format_time(high)} is the 90% interval)"


def _ranks(data: ResultData) -> str:
    parts = step_parts(data.ranks)
    rows = [
        [str(rank.rank), *(format_time(part.seconds(rank)) for part in parts), format_time(rank.communication_s)]
        for rank in data.ranks
    ]
    return details("All GPUs", table(["GPU", *(part.name for part in parts), "communication"], rows))


def _timeline(page: Mapping[str, Any]) -> str:
    if not page["timeline"]:
        return (
            "<p>This result holds no timeline: simulate with <code>--report</code>, or with <code>--record</code>.</p>"
        )
    left_out = page["timeline"]["ranks_left_out"]
    many = "1 GPU is left out: its" if left_out == 1 else f"{left_out} GPUs are left out: their"
    more = f"<p>{many} slices would make the page too slow.</p>" if left_out else ""
    buttons = "".join(
        f'<button id="{anchor}" type="button" title="{title}">{label}</button>'
        for anchor, label, title in (
            ("previous", "Previous", "Key p"), ("next", "Next", "Key n, or Enter"), ("zoom-in", "Zoom in", "Key +"),
            ("zoom-out", "Zoom out", "Key -"), ("zoom-all", "All", "Key Home"),
        )
    )  # fmt: skip
    return (
        '<div class="bar"><label>Search <input type="search" id="search" placeholder="operator, layer, collective"></label>'
        f'{buttons}<span id="found" aria-live="polite"></span></div>{more}'
        '<div class="chart" id="timeline" tabindex="0" role="application" aria-label="Timeline of all GPUs"></div>'
        '<p class="hint">Wheel or + and - zoom, dragging or the arrow keys move, / searches, n and p go to the next and the '
        "previous find. Colours: forward blue, backward light blue, optimizer green, communication red, waiting for a partner "
        "light red. Arrows lead from sends to receives.</p>"
    )


def _memory(data: ResultData, page: Mapping[str, Any]) -> str:
    columns = ("parameter", "gradient", "optimizer_state", "activation", "temporary", "communication", "other")
    rows = [
        [
            row.ranks,
            format_bytes(row.peak_bytes),
            *(format_bytes(getattr(row, f"{name}_bytes")) for name in columns),
            row.layer,
        ]
        for row in data.memory
    ]
    head = ["GPUs", "peak", *(name.replace("_", " ") for name in columns), "at the peak in"]
    curve = page["memory_curve"]
    drawn = (
        chart("memory-curve", "Memory over time by category")
        if curve
        else "<p>This result holds no memory over time.</p>"
    )
    clock = "<p class='hint'>Time is that of the GPU's operators, one after the other, without what it waits for.</p>"
    return drawn + (clock if curve else "") + details("The peak of each GPU", table(head, rows))


def _links(data: ResultData, page: Mapping[str, Any]) -> str:
    found = page["link_loads"]
    busiest = sorted(data.links, key=lambda link: -link.utilisation)
    rows = table(
        ["link", "bytes a step", "utilisation"],
        [[link.name, format_bytes(link.bytes), f"{link.utilisation:.1%}"] for link in busiest],
    )
    if not found:
        return "<p>This result holds no loads of links over time.</p>" + details("The busiest links", rows)
    drawing = ""
    if found["drawing"]:
        captions = "".join(f"<p class='hint'>{text(caption)}</p>" for caption in found["drawing"]["captions"])
        drawing = (
            '<div class="bar"><label for="link-time">Time</label><input type="range" id="link-time" min="0" value="0">'
            '<output id="link-when" for="link-time">over the whole run</output></div>'
            f"{chart('link-graph', 'Links over the topology')}{captions}"
        )
    raster = chart("link-raster", "The busiest links over time")
    return f"{drawing}{raster}{details('The busiest links', rows)}"


def _layers(data: ResultData) -> str:
    rows = sorted(data.layers, key=lambda row: -row.total_s)
    return table(
        ["layer", "forward", "backward", "optimizer", "total"],
        [
            [row.layer or NO_LAYER, *map(format_time, (row.forward_s, row.backward_s, row.optimizer_s, row.total_s))]
            for row in rows
        ],
    )


def _trust(data: ResultData) -> str:
    if data.step_time_interval_s is None:
        return "<p>No time was predicted: all operator times are measured.</p>"
    low, high = data.step_time_interval_s
    rows = [[one.source, f"{one.share:.0%}", format_time(one.error_s), one.measurement] for one in data.doubts]
    intro = f"<p>Nine of ten measured steps are expected between {format_time(low)} and {format_time(high)}.</p>"
    return (
        intro
        + f'<div class="scroll">{table(["what it comes from", "share", "error", "what would narrow it"], rows)}</div>'
    )


def _notes(data: ResultData) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in data.inputs.get("versions", {}).items())
    return f"{listed(data.notes)}<p class='hint'>{text(versions)}</p>"
