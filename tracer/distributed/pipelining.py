"""Pipelines of ``torch.distributed.pipelining``, one rank at a time: stages that ask their neighbours find a letter.

A stage that was not told its shapes has them from the stage before it, and those of the gradients from the one behind it. Here
each rank is a process, and what a stage says goes through a ``Mailbox``. Whether shapes are known is for all stages what it is
for this rank's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.distributed.pipelining import _utils, stage

from triosim.errors import CaptureError
from triosim.tracer.distributed.rank_messages import Mailbox
from triosim.tracer.patches import Patch, Patches
from triosim.tracer.pytorch_version import missing_api


def install(patches: Patches, mailbox: Mailbox | None) -> None:
    """Let pipeline stages find what their neighbours say until the patches are undone."""
    patches.make(_patches(mailbox))


def _patches(mailbox: Mailbox | None) -> Iterator[Patch]:
    stages = stage.PipelineStage
    mode = getattr(stage, "InferenceMode", None)
    if mode is None or not hasattr(_utils, "_StageForwardMeta"):
        raise missing_api("torch.distributed.pipelining's inference of shapes")

    def _warmup_forward_vote(self: Any, has_backward: bool, received_acc: Any = None) -> torch.Tensor:
        vote = 0 if mode.needs_dynamic(self._user_meta, has_backward) else 1
        return torch.tensor([vote * (1 if received_acc is None else int(received_acc.item()))], dtype=torch.int32)

    def _warmup_backward_result(self: Any, received_result: Any = None) -> Any:
        return received_result

    def _send_meta(self: Any, meta: Any, dst_stage: int) -> None:
        forward = isinstance(meta, _utils._StageForwardMeta)
        shapes = [_written(one) for one in (meta.forward_metas if forward else meta.backward_metas)]
        receiver = self._resolve_peer_global_rank(dst_stage)
        _letters(mailbox).put(receiver, _subject(self.stage_index, dst_stage), {"forward": forward, "tensors": shapes})

    def _recv_meta(self: Any, src_stage: int) -> Any:
        sender = self._resolve_peer_global_rank(src_stage)
        letter = _letters(mailbox).take(sender, _subject(src_stage, self.stage_index))
        kind = _utils._StageForwardMeta if letter["forward"] else _utils._StageBackwardMeta
        return kind(tuple([_read(one) for one in letter["tensors"]]))

    yield Patch(stages, "_warmup_forward_vote", _warmup_forward_vote)
    yield Patch(stages, "_warmup_backward_result", _warmup_backward_result)
    yield Patch(stages, "_send_meta", _send_meta)
    yield Patch(stages, "_recv_meta", _recv_meta)


def _subject(sender: int, receiver: int) -> str:
    return f"shapes-of-stage-{sender}-for-{receiver}"


def _letters(mailbox: Mailbox | None) -> Mailbox:
    if mailbox is None:
        raise CaptureError(
            "the stages of a pipeline ask each other for shapes, and this rank is captured alone",
            fix="give PipelineStage input_args and output_args, or capture by 'triosim capture --fake --world N'",
        )
    return mailbox


def _written(meta: Any) -> Any:
    if meta is None:
        return None
    if type(meta) is not _utils._TensorMeta:
        raise CaptureError(
            "distributed tensors between pipeline stages are not captured", fix="pass local ones: tensor.to_local()"
        )
    dtype = str(meta.dtype).removeprefix("torch.")
    return [list(meta.shape), list(meta.stride), dtype, meta.requires_grad]


def _read(row: Any) -> Any:
    if row is None:
        return None
    shape, stride, dtype, requires_grad = row
    return _utils._TensorMeta(torch.Size(shape), tuple(stride), getattr(torch, dtype), requires_grad)
