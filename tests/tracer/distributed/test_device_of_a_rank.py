"""A rank that chooses no device gets that of its local rank with its first mesh, as on GPUs."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402

from triosim.tracer.fake_device import FakeDevice  # noqa: E402


@pytest.mark.parametrize("chosen", [None, 0])
def test_a_mesh_chooses_the_device_unless_the_script_has_chosen_one(chosen: int | None) -> None:
    with FakeDevice("H100-SXM", world=4, rank=3):
        torch.distributed.init_process_group("nccl", device_id=torch.device("cuda:3"))
        if chosen is not None:
            torch.cuda.set_device(chosen)
        with torch.device("meta"):
            model = nn.Linear(8, 8)
        fully_shard(model)
        assert torch.cuda.current_device() == (3 if chosen is None else chosen)
        torch.distributed.destroy_process_group()


def test_whether_cuda_is_initialized() -> None:
    with FakeDevice("H100-SXM"):
        assert not torch.cuda.is_initialized()
        torch.ones(1, device="cuda")
        assert torch.cuda.is_initialized()
