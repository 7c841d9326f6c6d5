"""What DeepSpeed, Megatron-Core and torchtitan ask of PyTorch beside operators, on a fake GPU."""

from __future__ import annotations

import datetime

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402

from triosim.tracer.fake_device import FakeDevice, fake_capture  # noqa: E402


class Buffered(nn.Module):
    """A module with a list in the place of a method, as Megatron-Core's DistributedDataParallel."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.buffers = [torch.zeros(16)]  # type: ignore[assignment]

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        return self.linear(data)  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", ["zeros_like", "ones_like", "empty_like", "rand_like"])
def test_tensors_without_memory_are_made_like_those_of_the_gpu(name: str) -> None:
    """DeepSpeed's ZeRO lays out its flat buffers on "meta"."""
    with FakeDevice("H100"):
        made = getattr(torch, name)(torch.zeros(3, 4, device="cuda"), device="meta")
        assert (made.device.type, made.shape) == ("meta", (3, 4))
        assert torch.zeros(3, device="cuda").to("meta").device.type == "meta"


def test_numbers_become_a_tensor_on_the_current_gpu() -> None:
    with FakeDevice("H100", devices=4):
        torch.cuda.set_device(2)
        assert torch.tensor([1.0], device="cuda").device.index == 2
        assert torch.tensor([1.0], device="cuda:1").device.index == 1


@pytest.mark.filterwarnings("ignore::triosim.errors.CaptureWarning")
def test_tensors_among_numbers_are_read() -> None:
    with FakeDevice("H100"):
        one, unknown = torch.tensor(3.0, device="cuda"), torch.rand(2, 2, device="cuda").sum()
        assert torch.tensor([one, 2.0], device="cuda").tolist() == [3.0, 2.0]
        assert torch.tensor([[one], [unknown]]).shape == (2, 1)


def test_the_generator_of_a_gpu_takes_states_that_the_gpu_and_itself_gave() -> None:
    with FakeDevice("H100"):
        generator = torch.cuda.default_generators[0]
        generator.set_state(torch.cuda.get_rng_state())
        before = generator.get_state()
        generator.set_state(before)
        assert torch.equal(generator.get_state(), before)


def test_groups_take_the_options_of_nccl_and_have_no_timeouts() -> None:
    with FakeDevice("H100", world=2):
        options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True)
        options.config.cga_cluster_size = 2
        dist.init_process_group("nccl")
        group = dist.new_group([0, 1], pg_options=options)
        dist.distributed_c10d._set_pg_timeout(datetime.timedelta(seconds=1), group)
        assert dist.get_process_group_ranks(group) == [0, 1]
        dist.destroy_process_group()


def test_a_model_may_have_a_list_of_the_name_buffers() -> None:
    with fake_capture("H100") as capture:
        model = Buffered().cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            model(torch.randn(8, 4, device="cuda")).sum().backward()
            optimizer.step()
    assert capture.trace.batch_size == 8
