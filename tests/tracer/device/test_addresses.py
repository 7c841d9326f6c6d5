"""Libraries tell by addresses which tensors share memory: those of fake tensors do, and no others."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from triosim.tracer.fake_device import FakeDevice  # noqa: E402


def test_tensors_have_the_same_address_where_they_share_memory_and_no_bytes_of_others() -> None:
    with FakeDevice("H100-SXM"):
        one, other = torch.zeros(100, device="cuda"), torch.zeros(3, device="cuda")
        view = one[10:]
        first, second = one.untyped_storage().data_ptr(), other.untyped_storage().data_ptr()
        assert (one.data_ptr(), view.data_ptr(), other.data_ptr()) == (first, first + 40, second)
        assert view.untyped_storage().data_ptr() == first
        assert abs(first - second) >= (400 if first < second else 12)
        assert first % 512 == second % 512 == 0


def test_addresses_of_data_that_are_there_stay() -> None:
    there = torch.zeros(4)
    address = there.data_ptr()
    with FakeDevice("H100-SXM"):
        assert there.data_ptr() == there.untyped_storage().data_ptr() == address
        assert torch.zeros(0, device="cuda").data_ptr() == 0
        kept = torch.zeros(4, device="cuda")
        before = kept.untyped_storage().data_ptr()
        kept.untyped_storage().resize_(0)
        assert kept.untyped_storage().data_ptr() == 0
        kept.untyped_storage().resize_(16)
        assert kept.untyped_storage().data_ptr() == before
    assert torch.zeros(4, device="meta").untyped_storage().data_ptr() == 0
