"""What attention saves on chips that compute exponentials faster than their tensor cores' rate makes one expect.

A score of attention takes an exponential, in the forward pass and again in the backward pass (Dao et al. 2022). Special
function units compute 16 a clock of a multiprocessor, on Blackwell as on Hopper, so that a head of 128 features waits about as
long for them as for its products. Blackwell Ultra computes 10.7e12 a second where Blackwell does 5e12 (NVIDIA, "Inside NVIDIA
Blackwell Ultra", 2025): attention is shorter by the difference.
"""

from __future__ import annotations

import math

from triosim.gpus import Gpu
from triosim.operators.features import base_name, is_attention
from triosim.trace import Operator

_IN_A_CLOCK = 16
#: The least that is left of the time of a call.
_LEAST = 0.5


def share_left(operator: Operator, forward: Operator | None, seconds: float, gpu: Gpu) -> float:
    """Return the part of an attention's time that is left on a GPU of faster exponentials; 1 for other operators and GPUs."""
    if not gpu.exponentials or not seconds or not is_attention(base_name(operator.name)):
        return 1.0
    of = forward or operator
    given = [tensor.shape for tensor in of.inputs if len(tensor.shape) == 4]
    if len(given) < 2:
        return 1.0
    (batch, heads, length, _), keys = given[0], given[1][2]
    scores = batch * heads * length * keys * (0.5 if of.attributes.get("is_causal") is True else 1.0)
    usual = _IN_A_CLOCK * gpu.sms * gpu.clock_hz
    saved = scores * max(0.0, 1.0 / usual - 1.0 / gpu.exponentials) if usual else 0.0
    return max(_LEAST, 1.0 - saved / seconds) if math.isfinite(seconds) else 1.0
