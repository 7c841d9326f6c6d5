"""One GPU, another batch size: VGG-13 on an H100, traced at one batch size and predicted for the other, which was measured too.

``python -m validation.batch_size`` prints the operators that the default model is furthest off. ``linear`` was designed with
these two traces in view, so this guards against regressions and says where the error comes from; it is no test on unseen data.
"""

from __future__ import annotations

from dataclasses import replace

from triosim import Operator, Trace, load_trace
from triosim.compute.compute_model import ComputeModel
from triosim.compute.models.auto import AutoComputeModel
from triosim.compute.models.linear import Linear
from triosim.compute.models.roofline import Roofline
from triosim.compute.pricing.repricing import reprice
from triosim.sharding import reshape
from validation.report import Row, data, relative

SMALL, LARGE = "traces/h100_vgg13_bs128", "traces/h100_vgg13_bs512_raw"


def rows() -> list[Row]:
    small, large = load_trace(data(SMALL)), load_trace(data(LARGE))
    found = []
    for one, other in ((small, large), (large, small)):
        for name, model in (("auto", AutoComputeModel()), ("linear", Linear()), ("roofline", Roofline())):
            predicted = sum(operator.seconds for operator in rescaled(one, other.batch_size, model))
            what = f"VGG-13 on an H100: step at batch {other.batch_size} from {one.batch_size} by {name}"
            found.append(Row(what, "measured operators", 1, relative(predicted, other.seconds), 0.06))
    return found


def rescaled(trace: Trace, batch_size: int, model: ComputeModel) -> list[Operator]:
    """Return the operators as a model predicts them for another batch size."""
    model.fit(trace)
    shapes = reshape.rescaled(trace.operators, trace.batch_size, batch_size).operators
    return reprice(trace.operators, shapes, model, trace.gpu)


def main() -> None:
    small, large = load_trace(data(SMALL)), load_trace(data(LARGE))
    calls: dict[tuple[str, str], list[Operator]] = {}
    for operator in large.operators:
        calls.setdefault((operator.name, operator.phase), []).append(operator)
    pairs = []
    for operator, traced in zip(rescaled(small, large.batch_size, AutoComputeModel()), small.operators, strict=True):
        same = calls.get((operator.name, operator.phase))
        if same:
            pairs.append((replace(operator, layer=traced.layer), traced, same.pop(0)))
    pairs.sort(key=lambda pair: -abs(pair[0].seconds - pair[2].seconds))
    print(
        "| operator | layer | batch 128 ms | predicted 512 ms | measured 512 ms | off by ms | |\n|---|---|--:|--:|--:|--:|--:|"
    )
    for predicted, traced, measured in pairs[:12]:
        off = predicted.seconds - measured.seconds
        times = " | ".join(f"{one.seconds * 1e3:.2f}" for one in (traced, predicted, measured))
        print(f"| {predicted.name} | {predicted.layer} | {times} | {off * 1e3:+.2f} | {off / measured.seconds:+.0%} |")
    for phase in ("forward", "backward", "optimizer"):
        sums = [sum(pair[i].seconds for pair in pairs if pair[0].phase == phase) * 1e3 for i in (0, 2)]
        print(f"{phase}: predicted {sums[0]:.1f} ms, measured {sums[1]:.1f} ms ({sums[0] / sums[1] - 1:+.1%})")


if __name__ == "__main__":
    main()
