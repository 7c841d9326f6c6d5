"""Records fully sharded data parallelism on fake tensors: its streams by name, and its operators as a GPU runs them.

FSDP gathers and reduces on streams of its own (Zhao et al. 2023, "PyTorch FSDP", section 3.3), which are named here so that a
trace says which is which. FSDP2 packs and unpacks by operators of its own, which on a GPU are compositions of ATen operators.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.distributed.fsdp import _runtime_utils
from torch.distributed.fsdp._fully_shard import _fsdp_param_group

from triosim.tracer.device.dispatch_mode import DeviceMode
from triosim.tracer.distributed.communication_calls import CommunicationCalls
from triosim.tracer.patches import Patch, Patches
from triosim.tracer.pytorch_version import required
from triosim.tracer.recorder.recorder import Recorder

#: FSDP2's streams: the attributes of ``FSDPCommContext`` are ``all_gather_stream`` and so on.
_STREAMS = ("all_gather_copy_in", "all_gather", "reduce_scatter", "all_reduce")
#: FSDP1's streams, by attribute of its state.
_STREAMS_OF_FSDP1 = {
    "_unshard_stream": "all_gather",
    "_pre_unshard_stream": "all_gather_copy_in",
    "_post_backward_stream": "reduce_scatter",
    "_all_reduce_stream": "all_reduce",
}


def install(patches: Patches, recorder: Recorder, mode: DeviceMode, calls: CommunicationCalls) -> None:
    """Name FSDP's streams, and run its operators as on a GPU, until the patches are undone."""
    patches.make(_patches_of_fsdp2(recorder, calls))
    patches.make(_patches_of_fsdp1(recorder, calls))
    mode.replace(dict(_operators(mode)))


def _patches_of_fsdp2(recorder: Recorder, calls: CommunicationCalls) -> Iterator[Patch]:
    groups: Any = _fsdp_param_group
    context = required(groups, "FSDPCommContext")
    begin, reduce = required(context, "lazy_init"), required(groups, "foreach_reduce")
    unpack = required(groups, "foreach_all_gather_copy_out")

    def lazy_init(self: Any, *args: Any, **kwargs: Any) -> None:
        begin(self, *args, **kwargs)
        for name in _STREAMS:
            recorder.name_stream(getattr(self, f"{name}_stream").stream_id, name)

    def foreach_all_gather_copy_out(result: Any, params: Any, group: Any) -> None:
        """Unpack gathered parameters, whose memory is of the category communication and no activation."""
        unpack(result, params, group)
        for param in params:
            for whole in param.all_gather_outputs:
                recorder.categorise(whole, "communication")

    def foreach_reduce(*args: Any, **kwargs: Any) -> Any:
        for group in (*args, *kwargs.values()):
            if isinstance(group, torch.distributed.ProcessGroup):
                calls.groups.reduces_gradients(group.group_name)
        return reduce(*args, **kwargs)

    yield Patch(context, "lazy_init", lazy_init)
    yield Patch(groups, "foreach_reduce", foreach_reduce)
    yield Patch(groups, "foreach_all_gather_copy_out", foreach_all_gather_copy_out)


def _patches_of_fsdp1(recorder: Recorder, calls: CommunicationCalls) -> Iterator[Patch]:
    make_streams = required(_runtime_utils, "_init_streams")

    def _init_streams(state: Any, *args: Any, **kwargs: Any) -> None:
        make_streams(state, *args, **kwargs)
        for attribute, name in _STREAMS_OF_FSDP1.items():
            stream = getattr(state, attribute, None)
            if stream is not None and stream.stream_id:
                recorder.name_stream(stream.stream_id, name)
        for group in (state.process_group, getattr(state, "_inter_node_pg", None)):
            if group is not None:
                calls.groups.reduces_gradients(group.group_name)

    yield Patch(_runtime_utils, "_init_streams", _init_streams)


def _operators(mode: DeviceMode) -> Iterator[tuple[Any, Any]]:
    """Yield FSDP2's operators, and what runs them as on a GPU."""

    def as_on_a_gpu(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with mode:
            return function._op_dk(torch._C.DispatchKey.CUDA, *args, **kwargs)

    for name in ("all_gather_copy_in", "split_with_sizes_copy", "chunk_cat"):
        yield required(torch.ops.fsdp, name).default, as_on_a_gpu
