"""Which calls of an optimizer are steps of the script."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict  # noqa: E402

from triosim.tracer.steps import StepObservations, optimizer_steps  # noqa: E402


def test_a_checkpoint_that_lets_an_optimizer_allocate_its_states_makes_no_step() -> None:
    model = nn.Linear(4, 4)
    saved = torch.optim.Adam(model.parameters())
    model(torch.ones(2, 4)).sum().backward()
    saved.step()
    state = get_optimizer_state_dict(model, saved)
    resumed, over = torch.optim.Adam(model.parameters()), []
    model.zero_grad(set_to_none=True)
    with optimizer_steps(over.append, StepObservations()):
        set_optimizer_state_dict(model, resumed, state)
        assert resumed.state
        assert not over
        model(torch.ones(2, 4)).sum().backward()
        resumed.step()
    assert over == [resumed]
