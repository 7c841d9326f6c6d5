"""What Megatron-Bridge's recipes of mixtures of experts switch on, by model, system, precision and release.

They are its ``scripts/performance/configs``, and from release 26.06 on ``src/megatron/bridge/perf_recipes``:

- HybridEP carries tokens, on 32 multiprocessors, or NCCL (``moe_token_dispatcher_type``).
- Those in MXFP8 run a whole step as one CUDA graph from some release on (``_enable_hybridep_full_iteration_mxfp8``), so that
  nothing waits for launches, and passes side by side (``overlap_moe_expert_parallel_comm``), for which the stages of a pipeline
  have to be interleaved. Transformer Engine fuses what experts do between their products (``use_transformer_engine_op_fuser``).
  Outside of racks of GPUs, interleaved pipelines run side by side in each release.
- Activations that are cheap to compute are discarded (``recompute_modules``): of GPT-OSS norms and gates (``layernorm``,
  ``moe_act``), of DeepSeek-V3 and Kimi K2 the queries, keys and values behind their latents (``mla_up_proj``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from validation.steps.megatron_command import Division
from validation.steps.nemo_models import System

_HYBRIDEP_SMS = 32
_QWEN, _LARGE_QWEN, _DEEPSEEK, _KIMI, _GPT_OSS = (
    *("qwen3-30b-a3b", "qwen3-235b-a22b", "deepseek-v3", "kimi-k2", "gpt-oss-120b"),
)
#: The models whose recipes in MXFP8 run a step as one CUDA graph, and from which release on (year, month).
_ONE_GRAPH: Mapping[str, tuple[int, int]] = {
    _QWEN: (26, 6),
    _LARGE_QWEN: (26, 6),
    _DEEPSEEK: (26, 6),
    _GPT_OSS: (26, 8),
}
_UP_PROJECTIONS = "discard=q_b_proj,kv_b_proj"
_NORMS_AND_GATES = "discard=input_layernorm,post_attention_layernorm,act_fn"


@dataclass(frozen=True, slots=True)
class Recipe:
    """The recipe of a row: ``products`` are in MXFP8 or in another precision, the ``release`` is a year and a month."""

    model: str
    system: System
    products: str | None
    division: Division
    release: tuple[int, int]

    @property
    def trained(self) -> str:
        """The model as the command names it."""
        return f"{self.model}(fused_experts=true)" if self._is_one_graph else self.model

    def options(self) -> dict[str, Any]:
        """Return the options of the command, by name."""
        found = self._transport() | {"recompute": self._recomputed()}
        if self._is_one_graph:
            return found | {"ep_overlap": True, "host_overhead": "none"}
        return found | {"ep_overlap": self._is_side_by_side}

    @property
    def _is_one_graph(self) -> bool:
        whole = self.division.pp == 1 or self.division.chunks > 1
        late = self.release >= _ONE_GRAPH.get(self.model, (math.inf,))
        return whole and late and self.products == "mxfp8" and self.system.gpu != "B200"

    @property
    def _is_side_by_side(self) -> bool:
        chosen = self.model in (_QWEN, _LARGE_QWEN, _DEEPSEEK)
        return chosen and self.system.rack is None and self.division.chunks > 1

    def _transport(self) -> dict[str, Any]:
        by_nccl = self.model == _GPT_OSS or (self.model == _LARGE_QWEN and self.system.rack is None)
        if by_nccl and not self._is_one_graph:
            return {"ep_transport": None}
        return {"ep_transport": "hybridep", "option": (f"deepep_sms={_HYBRIDEP_SMS}",)}

    def _recomputed(self) -> str | None:
        if self.model == _GPT_OSS:
            return None if self._is_one_graph or self.system.gpu in ("GB300", "B300") else _NORMS_AND_GATES
        if self.model in (_DEEPSEEK, _KIMI):
            return None if self._is_one_graph and self.system.gpu == "GB300" else _UP_PROJECTIONS
        return None
