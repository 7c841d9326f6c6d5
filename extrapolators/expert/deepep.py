"""DeepEP or HybridEP as the transport of expert parallelism: what its kernels send for a layer, and its buffers.

Tokens are dispatched in fp8, with a scale for each 128 values, and combined in their own dtype, as DeepEP publishes its
figures; the gradient of a dispatch is a combine, and that of a combine a dispatch. An inference pass of few tokens takes the
low-latency kernels of DeepEP. The sizes of buffers are those that DeepEP V1 recommends (docs/legacy.md, csrc/config.hpp);
HybridEP has room for the tokens of all ranks, in a buffer that they are dispatched to and in one that they are combined from.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

from triosim.extrapolators.expert.expert_loads import TokenExchange
from triosim.extrapolators.expert.moe_layers import MoELayer
from triosim.networks.collectives.expert_exchange import tokens_sent
from triosim.tasks import DeepEP, ExpertLibrary
from triosim.trace import Tensor

MOST_DECODED = 128  # tokens of a rank that take the low-latency kernels: DeepEP's setting for decoding in production

SCALED = 128  # values that share a scale of four bytes in fp8
_NODE = 8  # GPUs that reach each other by NVLink, at most (NUM_MAX_NVL_PEERS)
_RDMA_TOKENS = 128  # of each channel and node
_TOP_K_BYTES = 128 * (8 + 4 + 4)  # indices, weights and scales of a token, with room for 128 of each
#: Tokens of each channel and peer that the buffer for NVLink holds, by the largest number of ranks.
_NVLINK_TOKENS = ((8, 256), (64, 288), (128, 560))
_MOST_NVLINK_TOKENS = 720


@dataclass(frozen=True, slots=True)
class DeepEPSettings:
    """A user's choices: the multiprocessors of a kernel, whether tokens are dispatched in fp8, and whose kernels they are.

    ``consecutive``: the experts of a token are neighbours.
    """

    sms: int
    fp8: bool
    library: ExpertLibrary = "deepep"
    consecutive: bool = False

    def kernel(self, layer: MoELayer, own: Tensor, exchange: TokenExchange, *, combine: bool, training: bool) -> DeepEP:
        """Return the kernel that sends a rank's ``own`` rows of a layer."""
        width = own.numel // own.shape[0]
        token_bytes = own.nbytes / own.shape[0]
        if self.fp8 and not combine:
            token_bytes = min(token_bytes, width + 4.0 * math.ceil(width / SCALED))
        tokens = layer.rows / layer.routing.top_k
        groups = layer.routing.groups, layer.routing.kept_groups
        if self.consecutive:
            groups = max(1, layer.experts // layer.routing.top_k), 1
        return DeepEP(
            *("combine" if combine else "dispatch", tokens, token_bytes, layer.routing.top_k, layer.experts),
            *(*groups, exchange.rows_by_rank(), self.sms),
            low_latency=self._decodes(tokens, training=training),
            library=self.library,
        )

    def buffer_bytes(self, layer: MoELayer, ranks: int, *, training: bool) -> float:
        """Return the bytes of the buffers of a group of so many ranks, for tokens as wide as those of a layer."""
        tokens, width = layer.rows / layer.routing.top_k, layer.first[0].inputs[0].shape[1]
        if self.library == "hybridep":
            return 2.0 * ranks * tokens * 2 * width
        if self._decodes(tokens, training=training):
            message = 2 * width + 4 * math.ceil(width / SCALED)
            return 4.0 * layer.experts * MOST_DECODED * message  # two to send from and two to receive in
        channels, nodes, token = self.sms // 2, math.ceil(ranks / _NODE), 2 * width + _TOP_K_BYTES
        held = next((held for most, held in _NVLINK_TOKENS if ranks <= most), _MOST_NVLINK_TOKENS)
        by_nvlink = channels * min(ranks, _NODE) * held * token
        return float(by_nvlink + (2 * channels * nodes * _RDMA_TOKENS * token if nodes > 1 else 0))

    def _decodes(self, tokens: float, *, training: bool) -> bool:
        return self.library == "deepep" and not training and tokens <= MOST_DECODED


@cache
def sizes(kernel: DeepEP, ranks: int) -> tuple[float, tuple[float, ...] | None]:
    """Return the mean of the bytes that a rank sends, its own included, and, where unequal, those from each to each."""
    nbytes = tokens_sent(kernel, ranks) * kernel.token_bytes
    mean = float(nbytes.sum()) / ranks
    if kernel.rows is None:
        return mean, None
    sent = nbytes.T if kernel.step == "combine" else nbytes
    return mean, tuple(sent.ravel().tolist())
