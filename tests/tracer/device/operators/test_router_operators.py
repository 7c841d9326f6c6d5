"""What routers choose is drawn as asked, and counts, sizes and the work of experts follow from it."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from collections.abc import Callable  # noqa: E402
from typing import Any  # noqa: E402

from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from triosim.errors import CaptureWarning  # noqa: E402
from triosim.extrapolators.expert.expert_loads import load_of  # noqa: E402
from triosim.tracer.fake_device import FakeDevice  # noqa: E402
from triosim.tracer.steps import StepObservations  # noqa: E402

EXPERTS, TOKENS, WIDTH = 8, 4096, 16


class Router(nn.Module):
    """Returns the experts of each token; ``choose`` takes them from the scores."""

    def __init__(self, choose: Callable[[Any], Any] = lambda scores: scores.topk(2, dim=-1)[1]) -> None:
        super().__init__()
        self.score = nn.Linear(WIDTH, EXPERTS)
        self.choose = choose

    def forward(self, tokens: Any) -> Any:
        return self.choose(self.score(tokens).softmax(-1))


class Experts(nn.Module):
    """A mixture layer with one product for each expert, of the tokens that it gets."""

    def __init__(self) -> None:
        super().__init__()
        self.router = Router()
        self.experts = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(EXPERTS)])

    def forward(self, tokens: Any) -> Any:
        chosen = nn.functional.one_hot(self.router(tokens), EXPERTS).permute(2, 1, 0)
        result = torch.zeros_like(tokens)
        for one, mask in zip(self.experts, chosen, strict=True):
            _, which = torch.where(mask)
            result = result.index_add(0, which, one(tokens[which]))
        return result


def device_of(text: str, rank: int = 0) -> FakeDevice:
    return FakeDevice("H100-SXM", world=2, rank=rank, routing=load_of(text, "--routing"))


def tokens() -> Any:
    return torch.randn(TOKENS, WIDTH, device="cuda", requires_grad=True)


def counts(text: str, rank: int = 0, calls: int = 1, **options: Any) -> list[list[int]]:
    with device_of(text, rank):
        model = nn.Sequential(Router(**options)).cuda()
        return [model(tokens()).reshape(-1).bincount(minlength=EXPERTS).tolist() for _ in range(calls)]


@pytest.mark.parametrize(
    "choose",
    [
        lambda scores: scores.argmax(-1),
        lambda scores: scores.max(-1)[1],
        lambda scores: scores.view(2, -1, EXPERTS).argmax(2),
    ],
)
def test_counts_have_the_asked_distribution(choose: Callable[[Any], Any]) -> None:
    """The k-th of eight experts gets 1/k^1.2 of what the first does, in some order."""
    weights = [rank**-1.2 for rank in range(1, EXPERTS + 1)]
    found = sorted(counts("zipf=1.2,seed=3", choose=choose)[0], reverse=True)
    assert found == pytest.approx([TOKENS * one / sum(weights) for one in weights], rel=0.15)
    assert counts("balanced", choose=choose) == [[TOKENS // EXPERTS] * EXPERTS]


def test_a_tokens_experts_are_different_ones() -> None:
    for text in ("balanced", "consecutive", "uniform", "zipf=2"):
        with device_of(text):
            chosen = Router().cuda()(tokens()).tolist()
        assert all(len(set(one)) == 2 and all(0 <= expert < EXPERTS for expert in one) for one in chosen)


def second_of_two(scores: Any) -> Any:
    """A token's experts one after another, as DeepSpeed's gate of two does it."""
    first = scores.argmax(-1)
    others = scores.masked_fill(nn.functional.one_hot(first, EXPERTS).bool(), float("-inf"))
    return torch.stack([first, others.argmax(-1)], -1)


@pytest.mark.parametrize("text", ["balanced", "consecutive", "uniform", "zipf=1.2,seed=3"])
def test_an_expert_that_is_chosen_after_another_one_is_not_that_one(text: str) -> None:
    with device_of(text):
        chosen = Router(second_of_two).cuda()(tokens()).tolist()
    assert all(len(set(one)) == 2 for one in chosen)
    found = [[one[choice] for one in chosen] for choice in (0, 1)]
    popular = [max(range(EXPERTS), key=one.count) for one in found]
    if text == "zipf=1.2,seed=3":
        assert popular[0] == popular[1]  # one likelihood for both
        assert [one.count(popular[0]) / TOKENS for one in found] == pytest.approx([0.44, 0.29], rel=0.1)
    elif text != "uniform":
        assert all(one.count(expert) == TOKENS // EXPERTS for one in found for expert in range(EXPERTS))
        assert {(one[1] - one[0]) % EXPERTS for one in chosen} == {EXPERTS // 2 if text == "balanced" else 1}


def test_each_seed_rank_layer_and_call_draws_its_own_and_again_the_same() -> None:
    first, second = counts("zipf=1.2,seed=3", calls=2)
    assert [first, second] == counts("zipf=1.2,seed=3", calls=2)
    assert sorted(first) != sorted(second)
    assert counts("zipf=1.2,seed=4") != [first]


def test_ranks_share_how_likely_each_expert_is() -> None:
    here, there = counts("zipf=1.2,seed=3")[0], counts("zipf=1.2,seed=3", rank=1)[0]
    assert here != there
    assert here == pytest.approx(there, rel=0.2)


@pytest.mark.parametrize("reentrant", [None, False, True])
def test_experts_work_on_the_rows_that_were_drawn_also_where_activations_are_computed_again(
    reentrant: bool | None,
) -> None:
    rows: list[int] = []
    drawn: list[list[int]] = []
    with device_of("zipf=1.2,seed=3"):
        model = nn.Sequential(Experts()).cuda()
        optimizer = torch.optim.SGD(model.parameters())
        for one in model[0].experts:
            one.register_forward_hook(lambda _, given, __: rows.append(given[0].shape[0]))
        model[0].router.register_forward_hook(
            lambda _, __, chosen: drawn.append(chosen.reshape(-1).bincount(minlength=EXPERTS).tolist())
        )
        for _ in range(2):
            micro_batches = [tokens() for _ in range(2)]
            calls = [
                model(one) if reentrant is None else checkpoint(model, one, use_reentrant=reentrant)
                for one in micro_batches
            ]
            for one in calls:
                one.sum().backward()
            optimizer.step()
    assert rows == [count for call in drawn for count in call]
    if reentrant is None:
        assert len(drawn) == 4
    else:
        assert drawn[:2] == drawn[2:4]
        assert drawn[4:6] == drawn[6:]
        assert len({tuple(one) for one in drawn}) == 4


def test_masks_of_many_tokens_are_known() -> None:
    """One for each token and expert, as Megatron-Core's routing map, which is larger than other contents that are known."""
    with device_of("zipf=1.2") as device:
        chosen = Router().cuda()(torch.randn(65536, WIDTH, device="cuda"))
        mask = torch.zeros(65536, EXPERTS, device="cuda").scatter(1, chosen, 1).bool()
        counts = mask.sum(0)
        assert counts.tolist() == chosen.reshape(-1).bincount(minlength=EXPERTS).tolist()
        assert torch.arange(65536, device="cuda").expand(EXPERTS, -1).masked_select(mask.T).shape == (2 * 65536,)
        assert mask.nonzero().shape == (2 * 65536, 2)
        assert device.notes == []


@pytest.mark.parametrize("call", [lambda scores: scores.topk(2, dim=0)[1], lambda scores: scores.argmax()])
def test_what_is_no_choice_of_experts_is_not_drawn(call: Callable[[Any], Any]) -> None:
    with device_of("zipf=1.2") as device:
        Router(call).cuda()(tokens()).sum().item()
        nn.Sequential(nn.Linear(WIDTH, EXPERTS)).cuda()(tokens()).topk(2)[1].sum().item()
    assert len(device.notes) == 2


def test_a_step_without_routers_says_that_nothing_is_drawn() -> None:
    with device_of("balanced") as device:
        device.recorder.begin()
        nn.Linear(WIDTH, WIDTH).cuda()(tokens()).sum().backward()
        with pytest.warns(CaptureWarning, match="--routing draws nothing"):
            device.step_ends(0, StepObservations(batch_size=1))
