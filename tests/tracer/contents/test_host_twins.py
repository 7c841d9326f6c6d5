"""A real tensor on the host into which something unknown was written is unknown there, through all of its views."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from triosim.errors import CaptureWarning  # noqa: E402

pytestmark = pytest.mark.usefixtures("device")


def loss() -> torch.Tensor:
    return torch.rand(3, device="cuda").sum().cpu()


def test_a_sum_on_the_host_of_unknown_losses_is_unknown() -> None:
    total = torch.zeros(1)
    total += loss()
    with pytest.warns(CaptureWarning, match="assumed to be"):
        assert total.item() == 1.0
    assert (str(total), total.tolist(), total.numpy().tolist()) == ("tensor(..., size=(1,))", [1.0], [1.0])


def test_other_elements_and_views_stay_known_and_one_that_is_overwritten_is_known_again() -> None:
    totals = torch.zeros(3)
    middle = totals[1]
    totals[0] += loss()
    middle += 64
    assert totals[1:].tolist() == [64, 0]
    assert middle.item() == 64
    assert totals.clone()[1].item() == 64
    assert totals.sum().item() == 65  # the unknown one is read as 1
    totals[0] = 5
    assert totals.tolist() == [5, 64, 0]
    assert str(totals) == "tensor([ 5., 64.,  0.])"
