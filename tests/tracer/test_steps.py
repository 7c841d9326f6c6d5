"""What counts as one training step of a script, by the calls of its optimizer."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from triosim.tracer.steps import StepObservations, optimizer_steps  # noqa: E402


def grouped(count: int) -> torch.optim.Optimizer:
    return torch.optim.SGD([{"params": [nn.Parameter(torch.ones(2))]} for _ in range(count)], lr=0.1)


def test_an_optimizer_that_steps_its_groups_one_by_one_makes_one_step() -> None:
    """As DeepSpeed's ZeRO-1 and 2 do where weights and biases, or experts, are groups of their own."""
    ended = []
    with optimizer_steps(ended.append, StepObservations()):
        optimizer = grouped(3)
        groups = optimizer.param_groups
        for step in range(1, 4):
            for group in groups:
                optimizer.param_groups = [group]
                assert len(ended) == step - 1
                optimizer.step()
            optimizer.param_groups = groups
            assert len(ended) == step
            optimizer.load_state_dict(optimizer.state_dict())
            groups = optimizer.param_groups


def test_an_optimizer_that_lost_a_group_ends_steps_with_those_that_it_has() -> None:
    ended = []
    with optimizer_steps(ended.append, StepObservations()):
        optimizer = grouped(3)
        del optimizer.param_groups[0]
        for _ in range(4):
            optimizer.step()
    assert len(ended) == 3  # from the second on


def test_an_optimizer_of_before_ends_a_step_with_each_call() -> None:
    ended, optimizer = [], grouped(2)
    with optimizer_steps(ended.append, StepObservations()):
        optimizer.param_groups = optimizer.param_groups[:1]
        optimizer.step()
    assert len(ended) == 1
