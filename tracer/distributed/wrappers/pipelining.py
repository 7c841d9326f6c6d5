"""Lets the stages of ``torch.distributed.pipelining`` exchange shapes while each rank is captured in a process of its own.

A stage that was not given its shapes gets them from the stage before it, and those of the gradients from the one after it.
Here they are sent as ``RankMessages``. Whether shapes are given is assumed to be the same for all stages.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.distributed.pipelining import _utils, stage

from triosim.errors import CaptureError
from triosim.tracer.distributed.rank_messages import RankMessages
from triosim.tracer.patches import Patch, Patches
from triosim.tracer.pytorch_version import required


def install(patches: Patches, messages: RankMessages | None) -> None:
    """Let pipeline stages exchange shapes through messages until the patches are undone."""
    patches.make(_patches(messages))


def _patches(messages: RankMessages | None) -> Iterator[Patch]:
    stages = stage.PipelineStage
    mode = required(stage, "InferenceMode")
    required(_utils, "_StageForwardMeta")

    def _warmup_forward_vote(self: Any, has_backward: bool, received_acc: Any = None) -> torch.Tensor:
        vote = 0 if mode.needs_dynamic(self._user_meta, has_backward) else 1
        return torch.tensor([vote * (1 if received_acc is None else int(received_acc.item()))], dtype=torch.int32)

    def _warmup_backward_result(self: Any, received_result: Any = None) -> Any:
        return received_result

    def _send_meta(self: Any, meta: Any, dst_stage: int) -> None:
        forward = isinstance(meta, _utils._StageForwardMeta)
        shapes = [_to_json(one) for one in (meta.forward_metas if forward else meta.backward_metas)]
        receiver = self._resolve_peer_global_rank(dst_stage)
        _needed(messages).send(receiver, _subject(self.stage_index, dst_stage), {"forward": forward, "tensors": shapes})

    def _recv_meta(self: Any, src_stage: int) -> Any:
        sender = self._resolve_peer_global_rank(src_stage)
        message = _needed(messages).receive(sender, _subject(src_stage, self.stage_index))
        kind = _utils._StageForwardMeta if message["forward"] else _utils._StageBackwardMeta
        return kind(tuple([_from_json(one) for one in message["tensors"]]))

    yield Patch(stages, "_warmup_forward_vote", _warmup_forward_vote)
    yield Patch(stages, "_warmup_backward_result", _warmup_backward_result)
    yield Patch(stages, "_send_meta", _send_meta)
    yield Patch(stages, "_recv_meta", _recv_meta)


def _subject(sender: int, receiver: int) -> str:
    return f"shapes-of-stage-{sender}-for-{receiver}"


def _needed(messages: RankMessages | None) -> RankMessages:
    if messages is None:
        raise CaptureError(
            "the stages of a pipeline ask each other for shapes, and this rank is captured alone",
            fix="give PipelineStage input_args and output_args, or capture by 'triosim capture --fake --world N'",
        )
    return messages


def _to_json(meta: Any) -> Any:
    if meta is None:
        return None
    if type(meta) is not _utils._TensorMeta:
        raise CaptureError(
            "distributed tensors between pipeline stages are not captured", fix="pass local ones: tensor.to_local()"
        )
    dtype = str(meta.dtype).removeprefix("torch.")
    return [list(meta.shape), list(meta.stride), dtype, meta.requires_grad]


def _from_json(row: Any) -> Any:
    if row is None:
        return None
    shape, stride, dtype, requires_grad = row
    return _utils._TensorMeta(torch.Size(shape), tuple(stride), getattr(torch, dtype), requires_grad)
