"""Measured against predicted, every row a point, every table a colour, on logarithmic axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from triosim.errors import OutputError
from validation.steps.errors import Predicted, summaries


def scatter(found: Sequence[Predicted], path: str) -> None:
    """Write the picture, a panel for each unit. Raises ``OutputError`` where it cannot be written."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    found = [_in_seconds(one) for one in found]
    units = list(dict.fromkeys(one.row.unit for one in found))
    figure, panels = plt.subplots(1, len(units), figsize=(5.5 * len(units), 5.2), squeeze=False)
    for unit, axes in zip(units, panels[0], strict=True):
        mine = [one for one in found if one.row.unit == unit]
        for summary in summaries(mine):
            points = [one for one in mine if (one.source, one.row.quantity) == (summary.table, summary.quantity)]
            label = f"{summary.table}, {summary.rows} rows: {100 * summary.mean:.1f}%"
            axes.plot([p.row.measured for p in points], [p.value for p in points], "o", ms=3, alpha=0.6, label=label)
        ends = [
            f([min(o.row.measured, o.value) for o in mine] + [max(o.row.measured, o.value) for o in mine])
            for f in (min, max)
        ]
        ends = [ends[0] / 1.2, ends[1] * 1.2]
        axes.plot(ends, ends, "k-", lw=0.8)
        for factor in (0.9, 1.1):
            axes.plot(ends, [factor * end for end in ends], "k:", lw=0.6)
        axes.set(
            xscale="log", yscale="log", xlim=ends, ylim=ends, xlabel=f"measured, {unit}", ylabel=f"predicted, {unit}"
        )
        axes.set_aspect("equal")
        axes.legend(fontsize=7, loc="upper left")
    figure.suptitle("Measured and predicted; mean absolute errors; dotted: 10% off", fontsize=10)
    figure.tight_layout()
    try:
        figure.savefig(path, dpi=110)
    except (OSError, ValueError) as error:
        raise OutputError(f"cannot be written: {error}", where=path) from None
    finally:
        plt.close(figure)


def _in_seconds(one: Predicted) -> Predicted:
    """Return milliseconds as seconds, so that all times are in one panel."""
    if one.row.unit != "ms":
        return one
    return replace(one, row=replace(one.row, measured=1e-3 * one.row.measured, unit="s"), value=1e-3 * one.value)
