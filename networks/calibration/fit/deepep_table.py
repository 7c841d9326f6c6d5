"""Reads the rows of tables of DeepEP's dispatch and combine, as aiconfigurator measures them: one line for both kernels.

Dispatch sends fp8 with a scale of four bytes for each 128 values, combine bf16. A time is that of transmission and, for the
kernels for training, of the notification before it. A token keeps the experts of four nodes at most, the benchmark's default.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from triosim.errors import TriosimError
from triosim.networks.calibration.fit.measured import not_negative, positive
from triosim.tasks import DeepEP

Step = Literal["dispatch", "combine"]
STEPS: tuple[Step, Step] = ("dispatch", "combine")
MOST_KEPT = 4  # nodes
_LOW_LATENCY = "dispatch_avg_t_us"  # a column of the kernels for decoding


def is_header(names: object) -> bool:
    """Return whether the names of columns are those of a table of DeepEP."""
    return isinstance(names, (list, set, tuple)) and {"num_topk", "num_token", "node_num"} <= set(names)


def token_bytes(step: Step, hidden: float) -> float:
    """Return the bytes of a token."""
    return hidden * (1 + 4 / 128) if step == "dispatch" else 2.0 * hidden


def kernel_of(line: Mapping[str, str], step: Step) -> DeepEP:
    """Return the kernel of a line. Raises ``TriosimError`` for a cell that is no number above zero."""
    hidden, tokens, top_k, experts, nodes = (
        round(positive(line[column], column, ""))
        for column in ("hidden_size", "num_token", "num_topk", "num_experts", "node_num")
    )
    if top_k > experts:
        raise TriosimError(f"num_topk: each token goes to {top_k} of {experts} experts")
    low_latency = _LOW_LATENCY in line
    sms = 0 if low_latency else round(positive(line[f"{step}_sms"], f"{step}_sms", ""))
    kept = nodes if low_latency else min(nodes, MOST_KEPT)
    return DeepEP(
        *(step, tokens, token_bytes(step, hidden), top_k, experts, nodes, kept), sms=sms, low_latency=low_latency
    )


def seconds_of(line: Mapping[str, str], step: Step) -> float:
    """Return what a kernel took. Raises ``TriosimError`` for a cell that is no number."""
    if _LOW_LATENCY in line:
        return positive(line[f"{step}_avg_t_us"], f"{step}_avg_t_us", "") * 1e-6
    transmitted, notified = f"{step}_transmit_us", f"{step}_notify_us"
    waited = not_negative(line[notified].strip() or "0", notified, "")
    return (positive(line[transmitted], transmitted, "") + waited) * 1e-6
