"""Threads of a script work on the fake device beside its main one, and take no part in the trace."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

torch = pytest.importorskip("torch")

from triosim.tracer.fake_device import FakeDevice  # noqa: E402

LARGE = (3000, 1000)  # on the host too large to be real


def test_threads_and_the_main_one_see_their_tensors_on_the_gpu_at_the_same_time(device: FakeDevice) -> None:
    on_host, on_gpu = torch.zeros(LARGE), torch.zeros(LARGE, device="cuda")

    def load() -> str:
        return (on_host[...].to("cuda", torch.bfloat16) * 2).sum(0).device.type

    with ThreadPoolExecutor(4) as pool:
        loaded = [pool.submit(load) for _ in range(100)]
        seen = {(on_gpu * 2).device.type for _ in range(100)}
    assert {one.result() for one in loaded} == seen == {"cuda"}


@pytest.mark.parametrize("shape", [(4,), LARGE])
def test_a_thread_makes_tensors_on_the_gpu_moves_them_there_and_reads_them(
    device: FakeDevice, shape: tuple[int, ...]
) -> None:
    weight = torch.ones(shape)
    with ThreadPoolExecutor(1) as pool:
        moved, made, known = pool.submit(
            lambda: (weight.to("cuda"), torch.empty(shape, device="cuda"), torch.tensor([3], device="cuda").item())
        ).result()
    assert (moved.device.type, made.device.type, known) == ("cuda", "cuda", 3)


def test_what_a_thread_launches_is_not_recorded_and_its_tensors_are_in_memory_once_used(device: FakeDevice) -> None:
    device.recorder.begin()
    with ThreadPoolExecutor(1) as pool:
        made = pool.submit(lambda: torch.zeros(1024, 1024, device="cuda") + 1).result()
    assert not device.recorder.end().operators
    device.recorder.begin()
    before = torch.cuda.memory_allocated()
    _ = made * 2
    assert [one.name for one in device.recorder.end().operators] == ["aten::mul"]
    assert torch.cuda.memory_allocated() - before == 2 * 4 * 1024**2
