"""CUDA graphs without a GPU: nothing runs while one is captured, and all of it, with one launch, when it is replayed."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from triosim.operators.features import base_name, is_free, is_launched  # noqa: E402
from triosim.tracer import fake_capture  # noqa: E402


def test_a_graph_runs_when_it_is_replayed_and_not_when_it_is_captured() -> None:
    """Three layers, replayed twice in each step: six products, of which two are launched."""
    with fake_capture("H100-SXM") as capture:
        model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(3))).cuda()
        head = nn.Linear(64, 8).cuda()
        optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
        data = torch.zeros(16, 64, device="cuda")
        graph = torch.cuda.CUDAGraph()
        before = torch.cuda.memory_allocated()
        with torch.no_grad(), torch.cuda.graph(graph):
            assert torch.cuda.is_current_stream_capturing()
            made = model(data)
        assert not capture.recorder.step.operators or base_name(capture.recorder.step.operators[-1].name) != "addmm"
        assert torch.cuda.memory_allocated() >= before + 3 * 16 * 64 * 4
        for _ in range(2):
            data.copy_(torch.ones(16, 64, device="cuda"))
            graph.replay()
            graph.replay()
            head(made).sum().backward()
            optimizer.step()
    replayed = [
        one for one in capture.trace.operators if base_name(one.name) == "addmm" and one.outputs[0].shape[1] == 64
    ]
    assert len(replayed) == 6
    assert {one.stream for one in replayed} == {"compute"}
    assert sum(not one.attributes.get("in_graph") and not is_free(one) for one in replayed) <= 2
    assert not any(is_launched(one) for one in replayed if one.attributes.get("in_graph"))


def launched(capture: fake_capture) -> list[str]:
    """Return the kernels of the captured step that the host launches by themselves."""
    found = [one for one in capture.trace.operators if not is_free(one) and not one.attributes.get("in_graph")]
    return [base_name(one.name) for one in found]


def test_a_replay_of_a_whole_step_is_a_step_with_one_launch() -> None:
    """The captured call of the optimizer is no step; each of the two replays is one, the second of which is captured here."""
    with fake_capture("H100-SXM", skip=2) as capture:
        model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(3))).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        data = torch.zeros(16, 64, device="cuda")

        def step() -> None:
            model(data).sum().backward()
            optimizer.step()

        step()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        for _ in range(2):
            graph.replay()
    assert len(launched(capture)) == 1
    assert capture.trace.batch_size == 16
    phases = [one.phase for one in capture.trace.operators if base_name(one.name) in ("addmm", "mm")]
    assert (phases.count("forward"), phases.count("backward")) == (3, 5)  # the data needs no gradient
    assert capture.trace.operators[-1].phase == "optimizer"


def test_compiled_code_that_reduces_overhead_launches_a_graph_for_each_pass() -> None:
    """From the third step on; the loss and the optimizer are launched as ever."""
    launches = {}
    for mode in ("default", "reduce-overhead"):
        with fake_capture("H100-SXM", skip=2) as capture:
            model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(3))).cuda()
            compiled = torch.compile(model, mode=mode)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for _ in range(3):
                compiled(torch.zeros(16, 64, device="cuda")).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
        launches[mode] = launched(capture)
    products = ("addmm", "mm")
    assert sum(name in products for name in launches["default"]) == 8
    assert sum(name in products for name in launches["reduce-overhead"]) <= 2
    saved = len(launches["default"]) - len(launches["reduce-overhead"])
    assert saved == 8 + 3 - 2  # the products and three sums of biases are two launches


def test_graphed_callables_launch_a_graph_for_each_pass() -> None:
    """A network of three layers and a function: two launches each; the loss and the optimizer are launched as ever."""
    kernels = {}
    for graphed in (False, True):
        with fake_capture("H100-SXM") as capture:
            model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(3))).cuda()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            called: tuple[Any, Any] = (model, lambda x: x.sin().exp())
            data = torch.zeros(16, 64, device="cuda")
            if graphed:
                called = torch.cuda.make_graphed_callables(called, ((data,), (data,)))
            assert called[0] is model
            for _ in range(2):
                called[1](called[0](data)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
        kernels[graphed] = launched(capture)
        assert not capture.notes
    network, function = 3 + 5 + 3, 2 + 3  # products, sums of biases; sin, exp, and a product, cos and a product back
    assert len(kernels[False]) - len(kernels[True]) == network - 2 + function - 2


@pytest.mark.filterwarnings("ignore::triosim.errors.CaptureWarning")
def test_what_a_graph_writes_is_unknown() -> None:
    """A counter in a graph is 3 after three replays, and not the 1 of its capture."""
    with fake_capture("H100-SXM") as capture:
        count, kept = torch.zeros(1, device="cuda"), torch.ones(1, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            count += kept
        for _ in range(3):
            graph.replay()
        assert kept.item() == 1
        assert not capture.notes
        count.item()
        assert capture.notes
