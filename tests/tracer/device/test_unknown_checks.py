"""Libraries that decide by unknown contents decide as they usually do on a GPU."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.distributions import Categorical, Dirichlet, MultivariateNormal, Normal  # noqa: E402

from triosim.tracer.fake_device import FakeDevice  # noqa: E402

pytestmark = [pytest.mark.usefixtures("device"), pytest.mark.filterwarnings("ignore::triosim.errors.CaptureWarning")]


@pytest.mark.parametrize("line_search", [None, "strong_wolfe"])
def test_lbfgs_uses_its_iterations_and_says_so(device: FakeDevice, line_search: str | None) -> None:
    """20 iterations, one evaluation each; a line search evaluates once more, before the first."""
    model, losses = nn.Linear(4, 1).cuda(), []
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=20, line_search_fn=line_search)

    def closure() -> object:
        optimizer.zero_grad()
        loss = model(torch.randn(8, 4, device="cuda")).square().mean()
        loss.backward()
        losses.append(loss)
        return loss

    optimizer.step(closure)
    assert len(losses) == 20 + (line_search is not None)
    assert sum("all of its 20 iterations" in note for note in device.notes) == 1
    assert optimizer.param_groups[0]["tolerance_grad"] == 1e-7


def test_unknown_parameters_of_distributions_are_valid_and_known_ones_are_checked() -> None:
    unknown = torch.randn(3, 3, device="cuda")
    assert Categorical(unknown.softmax(-1)).sample().shape == (3,)
    assert Normal(unknown, unknown.exp()).rsample().shape == (3, 3)
    assert MultivariateNormal(unknown[0], unknown @ unknown.t()).log_prob(unknown[1]).shape == ()
    with pytest.raises(ValueError, match="support"):
        Dirichlet(torch.ones(2, device="cuda")).log_prob(torch.tensor([0.5, 0.7], device="cuda"))
