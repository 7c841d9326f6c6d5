"""The memory of the fake GPU is that of PyTorch's allocator on the real one, and can run out in PyTorch's words."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from collections.abc import Iterator  # noqa: E402

from triosim.tracer.fake_device import FakeDevice  # noqa: E402

MIB, GIB = 2**20, 2**30
#: What PyTorch reports of an H100, and what its CUDA context takes.
TOTAL, CONTEXT = round(79.18 * GIB), round(0.7 * GIB)


@pytest.fixture
def device() -> Iterator[FakeDevice]:
    with FakeDevice("H100-SXM", limited=True) as entered:
        yield entered


def test_small_and_large_allocations_have_segments_of_their_own(device: FakeDevice) -> None:
    """A small segment has 2 MiB and one for a few MiB 20, of which 17 are left; 18 MiB get a segment of that size."""
    first = torch.empty(100, device="cuda")
    assert (torch.cuda.memory_allocated(), torch.cuda.memory_reserved()) == (512, 2 * MIB)
    second = torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")
    third = torch.empty(18 * MIB, dtype=torch.uint8, device="cuda")
    assert torch.cuda.memory_allocated() == 512 + 21 * MIB
    assert torch.cuda.memory_reserved() == (2 + 20 + 18) * MIB
    del first, second, third
    assert (torch.cuda.memory_allocated(), torch.cuda.memory_reserved()) == (0, 40 * MIB)
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == 0
    assert torch.cuda.max_memory_reserved() == 40 * MIB
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_reserved() == torch.cuda.max_memory_allocated() == 0


def test_the_context_is_not_free(device: FakeDevice) -> None:
    assert torch.cuda.mem_get_info() == (TOTAL - CONTEXT, TOTAL)
    held = torch.empty(GIB, dtype=torch.uint8, device="cuda")
    assert torch.cuda.mem_get_info() == (TOTAL - CONTEXT - GIB, TOTAL)
    assert torch.cuda.memory_stats()["reserved_bytes.all.current"] == held.nbytes
    assert torch.cuda.get_device_properties(0).total_memory == TOTAL


def test_what_does_not_fit_raises_pytorchs_error_and_leaves_the_rest_usable(device: FakeDevice) -> None:
    held = [torch.empty(16 * GIB, dtype=torch.uint8, device="cuda") for _ in range(4)]
    with pytest.raises(torch.cuda.OutOfMemoryError) as raised:
        torch.empty(16 * GIB, dtype=torch.uint8, device="cuda")
    assert str(raised.value).startswith(
        "CUDA out of memory. Tried to allocate 16.00 GiB. GPU 0 has a total capacity of 79.18 GiB of which 14.48 GiB is free. "
        "Including non-PyTorch memory, this process has 64.70 GiB memory in use. Of the allocated memory 64.00 GiB is "
        "allocated by PyTorch, and 0 bytes is reserved by PyTorch but unallocated."
    )
    assert torch.cuda.memory_stats()["num_ooms"] == 1
    held.pop()
    assert torch.empty(16 * GIB, dtype=torch.uint8, device="cuda").is_cuda


def test_a_capture_goes_on_where_the_memory_is_used_up() -> None:
    with FakeDevice("H100-SXM"):
        held = [torch.empty(16 * GIB, dtype=torch.uint8, device="cuda") for _ in range(8)]
        assert torch.cuda.memory_allocated() == len(held) * 16 * GIB


def test_giving_memory_back_waits_for_the_gpu_and_keeping_it_does_not(device: FakeDevice) -> None:
    def waits() -> int:
        return [one.kind for one in device.recorder.step.marks].count("synchronize")

    held = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
    torch.cuda.empty_cache()
    assert waits() == 0
    del held
    torch.cuda.empty_cache()
    assert waits() == 1
    held = torch.empty(50 * GIB, dtype=torch.uint8, device="cuda")
    del held
    torch.empty(51 * GIB, dtype=torch.uint8, device="cuda")  # after the cached segment is given back
    assert waits() == 2
    assert torch.cuda.memory_stats()["num_alloc_retries"] == 1


def test_a_snapshot_has_pytorchs_segments_and_blocks(device: FakeDevice) -> None:
    held = torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")
    (segment,) = torch.cuda.memory_snapshot()
    assert (segment["total_size"], segment["allocated_size"], segment["segment_type"]) == (
        20 * MIB,
        held.nbytes,
        "large",
    )
    assert [(one["size"], one["state"]) for one in segment["blocks"]] == [
        (3 * MIB, "active_allocated"),
        (17 * MIB, "inactive"),
    ]
    assert torch.cuda.memory._snapshot()["segments"] == [segment]


def test_what_is_allocated_has_the_workspaces_of_cublas(device: FakeDevice) -> None:
    """On Hopper 32 MiB for each thread that multiplies: the script's, and that of the backward pass."""
    weight = torch.empty(64, 64, device="cuda", requires_grad=True)
    before = torch.cuda.memory_allocated()
    product = weight @ weight
    assert torch.cuda.memory_allocated() == before + product.nbytes + 32 * MIB
    product.sum().backward()
    assert torch.cuda.memory_allocated() >= before + 64 * MIB
    del product
    torch._C._cuda_clearCublasWorkspaces()
    assert torch.cuda.memory_allocated() == before + weight.grad.nbytes


def test_the_scripts_settings_of_the_allocator_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeDevice("H100-SXM", limited=True):
        monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True,pinned_use_cuda_host_register:True")
        held = torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")
        assert torch.cuda.memory_reserved() == 20 * MIB
        assert torch.cuda.memory_snapshot()[0]["is_expandable"]
        torch.cuda.set_per_process_memory_fraction(0.5)
        with pytest.raises(torch.cuda.OutOfMemoryError):
            torch.empty(40 * GIB, dtype=torch.uint8, device="cuda")
        del held


def test_pytorchs_visualiser_reads_a_snapshot_with_what_was_allocated_since(device: FakeDevice, tmp_path: Path) -> None:
    torch.cuda.memory._record_memory_history(max_entries=100)
    held = torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")
    freed = torch.empty(2 * MIB, dtype=torch.uint8, device="cuda")
    del freed
    torch.cuda.memory._dump_snapshot(str(tmp_path / "memory.pickle"))
    torch.cuda.memory._record_memory_history(enabled=None)
    found = pickle.loads((tmp_path / "memory.pickle").read_bytes())
    (entries,) = [one for one in found["device_traces"] if one]
    actions = ["segment_alloc", "alloc", "alloc", "free_requested", "free_completed", "snapshot"]
    assert [one["action"] for one in entries] == actions
    frame = entries[1]["frames"][0]
    assert (frame["filename"], frame["name"]) == (__file__, sys._getframe().f_code.co_name)
    assert entries[1]["size"] == held.nbytes
    visualiser = pytest.importorskip("torch.cuda._memory_viz")
    assert "3.0MiB" in visualiser.segsum(found)
    assert "alloc" in visualiser.trace(found)
    assert "Active Memory Timeline" in visualiser.trace_plot(found)


def test_what_else_may_be_asked_of_memory(device: FakeDevice) -> None:
    held = torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")
    statistics = torch.cuda.memory.memory_stats_as_nested_dict()
    assert statistics["allocated_bytes"]["all"]["current"] == held.nbytes
    assert torch.cuda.get_per_process_memory_fraction() == 1
    assert torch.cuda.memory.get_allocator_backend() == "native"
    assert torch.cuda.memory.host_memory_stats()["allocated_bytes.current"] == 0


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("no_such_setting:1", "Unrecognized key 'no_such_setting'"),
        ("max_split_size_mb:1", "max_split_size_mb too small"),
        ("expandable_segments:maybe", "Expected 'True' or 'False'"),
    ],
)
def test_settings_that_pytorch_refuses_are_an_error(
    device: FakeDevice, monkeypatch: pytest.MonkeyPatch, settings: str, said: str
) -> None:
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", settings)
    with pytest.raises(ValueError, match=said):
        torch.empty(100, device="cuda")


def test_settings_of_pytorch_that_change_nothing_here_are_accepted(
    device: FakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(
        "PYTORCH_ALLOC_CONF", "backend:native,roundup_power2_divisions:[256:1,512:2,>:4],pinned_num_register_threads:4"
    )
    assert torch.empty(100, device="cuda").shape == (100,)


def test_pools_of_the_script_take_from_the_one_that_there_is(device: FakeDevice) -> None:
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        held = torch.empty(100, device="cuda")
    assert held.is_cuda
    assert torch.cuda.memory_allocated() == 512
    assert (pool.use_count(), pool.snapshot()) == (1, [])
    assert torch.cuda.MemPool().id != pool.id
