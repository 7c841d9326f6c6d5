"""CUDA graphs without a GPU: nothing runs while one is captured, and all of it, with one launch, when it is replayed."""

from __future__ import annotations

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
