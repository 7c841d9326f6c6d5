"""Whatever is called known is what a real tensor would hold, and nothing that was made from unknown numbers is called known.

Random programs of views, changes in place and operators run on the fake device and on real tensors in which NaN stands for what
is unknown: it spreads as what is unknown does, for all operators here are exact on small whole numbers.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from triosim.errors import CaptureWarning  # noqa: E402
from triosim.tracer.contents import storage_contents  # noqa: E402
from triosim.tracer.fake_device import FakeDevice  # noqa: E402

UNKNOWN = float("nan")


pytestmark = pytest.mark.usefixtures("device")


Pair = tuple[Any, Any]  # a tensor on the fake device, and the real one with the same contents


def unknown(*shape: int) -> Pair:
    with torch._C._DisableTorchDispatch():
        real = torch.full(shape, UNKNOWN)
    return torch.rand(shape, device="cuda"), real


def numbers(draw: random.Random, count: int) -> Pair:
    rows = [float(draw.randrange(5)) for _ in range(count)]
    with torch._C._DisableTorchDispatch():
        real = torch.tensor(rows)
    return torch.tensor(rows, device="cuda"), real


def both(call: Callable[..., Any], *pairs: Pair) -> Pair:
    fake = call(*[one for one, _ in pairs])
    with torch._C._DisableTorchDispatch():
        return fake, call(*[one for _, one in pairs])


def view_of(draw: random.Random, pair: Pair) -> Pair:
    """A random view: elements, slices, transposes, other shapes, doubled rows."""
    at = draw.randrange(pair[1].shape[0])
    views: list[Callable[[Any], Any]] = [
        lambda one: one[at], lambda one: one[at:], lambda one: one[::2], lambda one: one[: at + 1],
        lambda one: one.unsqueeze(-1), lambda one: one.t() if one.dim() == 2 else one,
        lambda one: one.expand(2, *one.shape), lambda one: one.detach(), lambda one: one.view(one.shape),
        lambda one: one.view(2, -1) if one.is_contiguous() and one.numel() % 2 == 0 else one,
    ]  # fmt: skip
    return both(draw.choice(views), pair)


def changed(draw: random.Random, target: Pair, other: Pair, at: int) -> None:
    """Change a tensor in place with numbers or with what is in another one."""
    if 0 in target[1].stride() and target[1].numel() > 1:
        return  # PyTorch refuses to write where several elements share memory
    source = both(lambda one: one.reshape(-1)[at % one.numel()].clone(), other)
    writes: list[Callable[[Any, Any], Any]] = [
        lambda one, by: one.add_(by), lambda one, by: one.copy_(by), lambda one, by: one.fill_(7), lambda one, by: one.zero_(),
        lambda one, by: one.mul_(2), lambda one, by: one.add_(one.clone()), lambda one, by: one.masked_fill_(one > 3, 1),
        lambda one, by: one.clamp_(max=9), lambda one, by: one.sub_(by, alpha=2),
    ]  # fmt: skip
    both(draw.choice(writes), target, source)


def computed(draw: random.Random, pair: Pair, other: Pair) -> Pair:
    """A new tensor from one or two others."""
    makes: list[Callable[[Any, Any], Any]] = [
        lambda one, by: one + by.reshape(-1)[0], lambda one, by: one.clone(), lambda one, by: torch.cat([one, one * 2]),
        lambda one, by: torch.stack([by.reshape(-1)[-1], one.reshape(-1)[0]]), lambda one, by: one.cumsum(0),
        lambda one, by: one.double().float(), lambda one, by: one.flip(0), lambda one, by: torch.zeros_like(one),
        lambda one, by: one.sum(0, keepdim=True), lambda one, by: one.contiguous(),
        lambda one, by: one.index_select(0, torch.zeros(1, dtype=torch.int64, device=one.device)),
    ]  # fmt: skip
    if pair[1].numel() > 64:
        return pair
    return both(draw.choice(makes), pair, other)


def check(pair: Pair) -> None:
    """Compare what is known of the fake tensor with the real one."""
    part = storage_contents.known_part(pair[0])
    if part is None:
        return
    contents, mask = part
    with torch._C._DisableTorchDispatch():
        mask = torch.ones(contents.shape, dtype=torch.bool) if mask is None else mask
        assert torch.equal(contents[mask], pair[1][mask]), (contents, mask, pair[1])


@pytest.mark.filterwarnings("ignore::triosim.errors.CaptureWarning")
@pytest.mark.parametrize("seed", range(60))
def test_what_is_known_is_real_in_random_programs(seed: int) -> None:
    draw = random.Random(seed)
    pairs = [numbers(draw, 6), numbers(draw, 4), unknown(6)]
    for step in range(40):
        pair, other = draw.choice(pairs), draw.choice(pairs)
        if not pair[1].dim():
            changed(draw, pair, other, step)
            continue
        action = draw.randrange(3)
        if action == 0:
            pairs.append(view_of(draw, pair))
        elif action == 1:
            changed(draw, pair, other, step)
        else:
            pairs.append(computed(draw, pair, other))
        for one in pairs:
            check(one)


def test_an_unknown_number_written_into_a_view_makes_that_element_unknown_alone() -> None:
    counts = torch.zeros(3, device="cuda")
    counts[0] += torch.rand(4, device="cuda").sum()
    counts[1] += 64
    assert counts[1].item() == 64
    assert counts[1:].tolist() == [64, 0]
    with pytest.warns(CaptureWarning, match="assumed to be what follows from all 1"):
        assert counts.tolist() == [1, 64, 0]
    counts[0] = 5
    assert counts.tolist() == [5, 64, 0]


@pytest.mark.parametrize(
    "join",
    [
        lambda loss, count: torch.stack([loss, count]),
        lambda loss, count: torch.cat([loss[None], count[None]]).double() * 1,
        lambda loss, count: torch.zeros(2, device="cuda") + torch.stack([loss, count]),
        lambda loss, count: torch.zeros(2, device="cuda").copy_(torch.stack([loss, count])),
    ],
)
def test_a_count_put_together_with_an_unknown_loss_stays_known(join: Callable[..., Any]) -> None:
    both = join(torch.rand((), device="cuda"), torch.tensor(64.0, device="cuda"))
    assert both[1].item() == 64
    assert not storage_contents.is_known(both[0])


def test_values_of_large_tensors_are_forgotten_when_a_view_is_written_to(device: FakeDevice) -> None:
    ones, positions = torch.ones(100_000, device="cuda"), torch.arange(100_000, device="cuda")
    assert (ones[5].item(), (positions[1:] - positions[:-1])[0].item()) == (1, 1)
    assert device.notes == []
    ones[:10].fill_(3)
    positions[7].fill_(0)
    with pytest.warns(CaptureWarning):
        ones[20].item()
    with pytest.warns(CaptureWarning):
        (positions[1:] - positions[:-1])[8].item()


def test_memory_that_was_freed_and_allocated_again_holds_nothing_known() -> None:
    numbers = torch.zeros(4, device="cuda")
    nbytes = numbers.untyped_storage().nbytes()
    numbers.untyped_storage().resize_(0)
    numbers.untyped_storage().resize_(nbytes)
    assert not storage_contents.is_known(numbers)
