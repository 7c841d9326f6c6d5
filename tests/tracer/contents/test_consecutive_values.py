"""What a script finds when it compares positions on a GPU that is not there, and that two captures are the same."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from triosim.errors import CaptureWarning  # noqa: E402
from triosim.tracer.fake_device import fake_capture  # noqa: E402

H100 = "H100-SXM"


def steps(positions: torch.Tensor) -> torch.Tensor:
    """How much each position is more than the one before it."""
    return torch.diff(positions, prepend=positions[:, :1] - 1, dim=-1)


@pytest.mark.parametrize(("start", "samples"), [(0, 1), (7, 4)])
def test_positions_go_up_by_one(start: int, samples: int) -> None:
    with fake_capture(H100) as capture:
        positions = torch.arange(start, start + 16, device="cuda").unsqueeze(0).expand(samples, 16)
        assert bool((steps(positions) == 1).all())
        assert ((steps(positions + 3) != 1).cumsum(-1)[:, -1] == 0).all()
        assert steps(positions.clone().view(samples, 16))[0, -1].item() == 1
        assert (positions[:, 8:] - positions[:, :8])[0, 0].item() == 8
        assert (positions[:, -4:] - positions[:, :4])[0, 0].item() == 12
        assert capture.notes == []


def test_what_starts_again_or_skips_is_not_known() -> None:
    length = 2**16 + 1  # of shorter ones all contents are known
    row = [torch.arange(length), torch.arange(0, 2 * length, 2), torch.arange(float(length))]
    with fake_capture(H100) as capture:
        packed = torch.cat([torch.arange(length, device="cuda"), torch.arange(length, device="cuda")])
        changed = torch.arange(length, device="cuda")
        changed.mul_(2)
        for number, one in enumerate([packed, changed, *(one.cuda() for one in row[1:])], 1):
            with pytest.warns(CaptureWarning):  # each in a file of its own, for a line is named once
                exec(compile("one[1:].sub(one[:-1])[0].item()", f"script-{number}.py", "exec"), {"one": one})
    assert len(capture.notes) == 4


def test_autocasts_copies_of_weights_die_in_the_same_order_each_time() -> None:
    """PyTorch frees them by address."""

    def captured() -> object:
        with fake_capture(H100) as capture:
            model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(12))).cuda()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            held = []  # so that addresses differ
            for _ in range(2):
                held.append([bytes(100 * place) for place in range(50)])
                with torch.autocast("cuda", torch.bfloat16):
                    loss = model(torch.randn(8, 64, device="cuda")).sum()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
        return [(one.nbytes, one.category, one.layer, one.born, one.died) for one in capture.trace.storages]

    assert captured() == captured()


def test_memory_in_a_trace_dies_after_it_was_born_and_no_two_events_are_at_one_time() -> None:
    with fake_capture(H100) as capture:
        model = nn.Linear(64, 64).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            with torch.autocast("cuda", torch.bfloat16):
                loss = model(torch.randn(8, 64, device="cuda")).sum()
            loss.backward()
            optimizer.step()
    storages = capture.trace.storages
    times = [time for one in storages for time in (one.born, one.died) if time is not None]
    assert len(times) == len(set(times))
    assert all(one.died is None or one.died > one.born for one in storages)
