"""The report ``link-plot``: a heat map of the links on the topology, and of each link's load over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from triosim import plugins
from triosim.errors import OptionError
from triosim.networks.extensions import LinkCounter
from triosim.networks.topology import Topology
from triosim.output_files import PathLike
from triosim.reports.pictures.plot import WIDTH, PictureReport, check_plot, new_figure, save_figure, unit_of
from triosim.reports.pictures.topology_drawing import Drawing, drawing_of, is_drawable
from triosim.reports.pictures.topology_layout import blocked, rows_and_columns
from triosim.reports.pictures.topology_picture import show
from triosim.reports.terminal.tables import shorten
from triosim.results.link_loads import LoadCurve, edges, loads
from triosim.results.result import Result

MOST_ROWS = 400  # in the lower part; the busiest links are shown
MOST_LABELLED = 40
MOST_ARROWS = 80
SLOTS = 400  # into which the run is divided

_COLD = "#D9D9D9"  # a link that carried nothing


class LinkPlot(PictureReport):
    """A heat map of the links on the topology, and of each link's load over time."""

    records = ("links",)

    def write(self, result: Result, path: PathLike) -> None:
        """Draw the links. Raises ``OptionError`` where their loads were not recorded, or nothing was sent."""
        recording, network = result.recorded_links()
        topology, end = network.topology, recording.end
        found = loads(network.rates, end)
        if not found:
            raise OptionError("nothing was sent over any link, so there is no heat map", where=topology.name)
        bounds = edges(end, SLOTS)
        used = {link.name: link.utilisation for link in result.data.links}
        rows = _rows(found, sorted(found, key=lambda name: -round(used[name], 9)), bounds)
        heights = [1.3 + (0.24 * len(rows) if len(rows) <= MOST_LABELLED else 6.0)]
        drawing = drawing_of(topology) if is_drawable(topology) else None
        if drawing is not None:
            width, height = drawing.size
            inch = min(1.3, (WIDTH - 1.2) / width, 8.0 / height)  # a unit of the layout
            heights.insert(0, height * inch + 0.2)
        figure = new_figure(path, height=sum(heights) + 0.6)
        axes = figure.subplots(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
        if drawing is not None:
            _heat(axes[0], topology, drawing, inch, used)
        _raster(axes[-1], rows[:MOST_ROWS], bounds)
        _bar(figure, axes)
        over = "over the run above, and at each time below" if drawing is not None else "at each time"
        figure.suptitle(f"{result.title}\nuse of the links, {over}", fontsize=11)
        save_figure(figure, path)


def check_link_plot(path: PathLike, network: str | type) -> None:
    """Raise ``OutputError`` where a picture cannot be drawn, ``OptionError`` where the network has no links."""
    check_plot(path)
    found = plugins.find("networks", network)
    if not issubclass(found, LinkCounter):
        raise OptionError(
            f"the network '{network}' simulates no links, so there is nothing to draw",
            where="--link-plot",
            fix="take the network 'packet' or 'photonic'",
        )


def _heat(axes: Any, topology: Topology, drawing: Drawing, inch: float, used: Mapping[str, float]) -> None:
    """Draw each direction of each line as a curve, in the colour of the most loaded link that it stands for."""
    from matplotlib.patches import FancyArrowPatch

    show(axes, drawing, inch)
    heat: dict[tuple[str, str], float] = {}
    for link in topology.links.values():
        ends = drawing.ends(link)
        if ends is not None:
            heat[ends] = max(heat.get(ends, 0.0), used.get(link.name, 0.0))
    at = drawing.at
    colours, rows = _colours(), rows_and_columns(at)
    width = max(0.8, min(3.0, 3.2 * inch))
    arrows = sum(value > 0 for value in heat.values()) <= MOST_ARROWS
    for (a, b), value in sorted(heat.items(), key=lambda item: item[1]):  # the hottest on top
        bend = 0.28 if blocked(at[a], at[b], rows) else 0.07
        pointed = arrows and value > 0
        axes.add_patch(
            FancyArrowPatch(
                at[a], at[b], connectionstyle=f"arc3,rad={bend}",
                arrowstyle="-|>" if pointed else "-", mutation_scale=10, shrinkA=0,
                shrinkB=min(19.0, 22 * inch) if pointed else 0,
                color=colours.to_rgba(value) if value else _COLD, linewidth=width if value else width / 3,
                zorder=1 if not value else 2, clip_on=False,
            )
        )  # fmt: skip


def _rows(found: Mapping[str, LoadCurve], names: Sequence[str], bounds: Any) -> list[tuple[str, Any]]:
    """Return each link's name and its load in each time slot; of many links, those with equal loads are one row."""
    slot = bounds[1] - bounds[0]
    rows = [(name, found[name].taken(bounds) / slot) for name in names]
    if len(rows) <= MOST_LABELLED:
        return rows
    by_load: dict[bytes, list[tuple[str, Any]]] = {}
    for name, cells in rows:
        by_load.setdefault(cells.round(6).tobytes(), []).append((name, cells))
    return [
        (name if len(same) == 1 else f"{name} x{len(same)}", cells)
        for same in by_load.values()
        for name, cells in same[:1]
    ]


def _raster(axes: Any, rows: Sequence[tuple[str, Any]], bounds: Any) -> None:
    import numpy as np

    end = float(bounds[-1])
    unit, scale = unit_of(end)
    colours = _colours()
    extent = (0.0, end * scale, len(rows) - 0.5, -0.5)
    blank = np.ma.masked_less_equal(np.stack([cells for _, cells in rows]), 0.0)
    axes.imshow(blank, aspect="auto", interpolation="nearest", cmap=colours.cmap, norm=colours.norm, extent=extent)
    axes.set_facecolor("#F4F4F4")
    axes.set_xlabel(f"time ({unit})")
    if len(rows) <= MOST_LABELLED:
        axes.set_yticks(range(len(rows)), [shorten(name, 40) for name, _ in rows], fontsize=7)
    else:
        axes.set_yticks([])
        axes.set_ylabel(f"the {len(rows)} busiest links of different load, the busiest on top")
    for side in axes.spines.values():
        side.set_visible(False)
    axes.tick_params(axis="y", length=0)


def _colours() -> Any:
    """Return the colours of loads from 0 to 100%, which tell small loads apart: one colour means one load everywhere."""
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LinearSegmentedColormap, PowerNorm

    warm = LinearSegmentedColormap.from_list("warm", colormaps["YlOrRd"]([0.2 + 0.8 * i / 63 for i in range(64)]))
    return ScalarMappable(norm=PowerNorm(0.5, 0.0, 1.0), cmap=warm)


def _bar(figure: Any, axes: Any) -> None:
    from matplotlib.ticker import PercentFormatter

    bar = figure.colorbar(
        _colours(), ax=list(axes), shrink=0.6, aspect=24, pad=0.01, panchor=False, format=PercentFormatter(1.0, 0)
    )
    bar.set_ticks([0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 1])
    bar.set_label("share of a link's bandwidth in use", fontsize=8)
    bar.ax.tick_params(labelsize=7)
    bar.outline.set_visible(False)
