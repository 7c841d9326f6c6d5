"""A step on four GPUs (and a pipeline on two), against the working by hand in docs/worked-example.md."""

from __future__ import annotations

import triosim
from triosim import Operator, Tensor, Trace
from validation.report import Row, relative

RING = "ring({}, bandwidth=10 GB/s, latency=10 us)"


def rows() -> list[Row]:
    ddp = triosim.simulate(trace(), "ddp", topology=RING.format(4))
    dp = triosim.simulate(trace(), "dp", topology=RING.format(4))
    pp = triosim.simulate(
        trace(), "pp", topology=RING.format(2), micro_batches=2, schedule="gpipe", compute_model="linear"
    )
    figures = {
        "ddp, 4 GPUs: step": (ddp.step_time_s, 17.26e-3),
        "ddp, 4 GPUs: communication of a rank": (ddp.data.ranks[0].communication_s, 3.72e-3),
        "ddp, 4 GPUs: exposed communication": (ddp.data.ranks[0].exposed_communication_s, 1.26e-3),
        "dp, 4 GPUs: step": (dp.step_time_s, 19.66e-3),
        "pp, 2 stages, 2 micro-batches: step": (pp.step_time_s, 14.02e-3 + 1e-3 / 3),
    }
    return [Row(what, "working by hand", 1, relative(*pair), 1e-9) for what, pair in figures.items()]


def trace() -> Trace:
    """Two linear layers, A and B: 2 and 4 million fp32 parameters, an activation of 20 MB between them, batch 2,000.

    Every operator has a name of its own, so that the linear model has one point for each and scales it in proportion.
    """
    x = Tensor(0, (2000, 800), category="input", storage=0)
    h = Tensor(1, (2000, 2500), category="activation", storage=1)
    y = Tensor(2, (2000, 1600), category="output", storage=2)
    a = Tensor(3, (2500, 800), category="parameter", storage=3)
    b = Tensor(4, (1600, 2500), category="parameter", storage=4)
    grad_y = Tensor(5, y.shape, category="activation", storage=5)
    grad_h = Tensor(6, h.shape, category="activation", storage=6)
    grad_a = Tensor(7, a.shape, category="gradient", storage=7, parameter=a.id)
    grad_b = Tensor(8, b.shape, category="gradient", storage=8, parameter=b.id)
    return Trace(
        operators=(
            Operator(0, "aten::linear", "forward", "A", (x, a), (h,), 2e-3),
            Operator(1, "aten::addmm", "forward", "B", (h, b), (y,), 3e-3),
            Operator(2, "AddmmBackward0", "backward", "B", (grad_y, h, b), (grad_h, grad_b), 6e-3, forward=1),
            Operator(3, "LinearBackward0", "backward", "A", (grad_h, x, a), (grad_a,), 4e-3, forward=0),
            Operator(4, "aten::_foreach_add_", "optimizer", "", (a, b, grad_a, grad_b), (a, b), 1e-3),
        ),
        batch_size=2000,
        model="two layers",
        times="chosen",
    )
