"""Steps whose time can be worked out on paper, run on the engine and the default network."""

from __future__ import annotations

import pytest
import traces

import triosim
from triosim.trace import Trace

BANDWIDTH = 1e9
FAST = {"topology": "switch", "bandwidth": 1e18, "latency": 0}
SLOW = {"topology": "switch", "bandwidth": BANDWIDTH, "latency": 0}


def chain(layers: int = 4, batch: int = 8, width: int = 16) -> Trace:
    """Equal linear layers, 1 ms forward and 2 ms backward each, without a loss; 1 ms of optimizer for each.

    What the network is fed goes through a scale that takes no time, so that the first layer's input has a gradient too.
    """
    b = traces.Builder(batch)
    fed, scale, data = b.tensor(batch, width, category="input"), b.parameter(1), b.tensor(batch, width)
    b.run("aten::mul", [fed, scale], [data], layer="fc0", seconds=0.0)
    operators = []
    weights = [b.parameter(width, width) for _ in range(layers)]
    for index, weight in enumerate(weights):
        out = b.tensor(batch, width)
        operators.append(b.run("aten::linear", [data, weight], [out], layer=f"fc{index}"))
        data = out
    gradient = b.tensor(batch, width, category="gradient")
    for operator in reversed(operators):
        found = b.backward("AddmmBackward0", operator, gradient)
        assert found is not None
        gradient = found
    b.run("MulBackward0", [gradient], [], layer="fc0", phase="backward", seconds=0.0)
    gradients = {t.parameter: t for op in b.operators for t in op.outputs if t.parameter is not None}
    for weight in weights:
        b.run("aten::add_", [weight, gradients[weight.id]], [weight], layer="optimizer", phase="optimizer")
    return b.trace()


WEIGHTS = 4 * 16 * 16 * 4  # bytes


@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 2), (4, 4), (4, 8), (2, 8)])
def test_gpipe_takes_a_micro_batch_for_each_and_for_each_stage_but_one(stages: int, micro_batches: int) -> None:
    """(M + S - 1) times a stage's forward and backward of one micro-batch, then its part of the optimizer."""
    result = triosim.simulate(chain(), "pp", gpus=stages, topology=FAST, micro_batches=micro_batches)
    one = (1e-3 + 2e-3) * (4 / stages) / micro_batches
    assert result.step_time_s == pytest.approx((micro_batches + stages - 1) * one + 4e-3 / stages, rel=1e-6)


def test_dp_adds_the_ring_all_reduce_to_the_step() -> None:
    result = triosim.simulate(chain(), "dp", gpus=4, topology=SLOW)
    assert result.step_time_s == pytest.approx(16e-3 + 2 * 3 / 4 * WEIGHTS / BANDWIDTH, rel=1e-9)


def test_ddp_hides_all_but_the_last_bucket() -> None:
    """Each layer is a bucket of 1 KiB: three of four all-reduces run beside the backward pass."""
    result = triosim.simulate(chain(), "ddp", gpus=4, topology=SLOW, bucket_size=1, first_bucket_size=1)
    assert result.step_time_s == pytest.approx(16e-3 + 2 * 3 / 4 * (WEIGHTS / 4) / BANDWIDTH, rel=1e-9)


def test_tp_gathers_and_reduces_in_between() -> None:
    """Four outputs gathered, four gradients reduced, each of 512 bytes; a quarter of the work on each GPU."""
    result = triosim.simulate(chain(), "tp", gpus=4, topology=SLOW)
    assert result.step_time_s == pytest.approx(16e-3 / 4 + (4 * 3 / 4 + 4 * 2 * 3 / 4) * 512 / BANDWIDTH, rel=1e-6)


def test_a_step_of_data_and_pipeline_parallelism_is_the_pipelines_and_the_all_reduce_of_a_stage() -> None:
    """The last stage's all-reduce shares a link with the last gradient that is sent back, which takes twice as long."""
    pipeline = triosim.simulate(chain(), "pp", gpus=2, topology=SLOW)
    both = triosim.simulate(chain(), "dp=2,pp=2", gpus=4, topology=SLOW)
    all_reduce, sent = 2 * 1 / 2 * (WEIGHTS / 2) / BANDWIDTH, 4 * 16 * 4 / BANDWIDTH
    assert both.step_time_s - pipeline.step_time_s == pytest.approx(all_reduce + sent, rel=1e-6)


def test_iterations_take_as_long_each() -> None:
    once = triosim.simulate(chain(), "ddp", gpus=4, topology=SLOW)
    thrice = triosim.simulate(chain(), "ddp", gpus=4, topology=SLOW, iterations=3)
    assert thrice.step_time_s == pytest.approx(once.step_time_s, rel=1e-9)
