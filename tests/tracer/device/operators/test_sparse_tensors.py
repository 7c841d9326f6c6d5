"""Sparse matrices on the fake device: products with dense ones, their gradients and their memory."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from collections.abc import Callable  # noqa: E402
from typing import Any  # noqa: E402

from triosim.compute.pricing.prediction import with_predicted_times  # noqa: E402
from triosim.tracer.fake_device import FakeDevice, fake_capture  # noqa: E402

NODES, EDGES, FEATURES = 1000, 5000, 64


def graph(device: str = "cpu") -> Any:
    edges = torch.arange(EDGES) % NODES, torch.arange(EDGES) * 7 % NODES
    values = torch.ones(EDGES)
    return torch.sparse_coo_tensor(
        torch.stack(edges).to(device), values.to(device), (NODES, NODES), check_invariants=False
    )


class Convolution(torch.nn.Module):
    """Features of the neighbours of each node, times a weight."""

    def __init__(self, product: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.linear, self.product = torch.nn.Linear(FEATURES, 16), product

    def forward(self, features: Any, adjacency: Any) -> Any:
        return self.product(adjacency, self.linear(features))


@pytest.mark.parametrize(
    "product",
    [
        torch.mm,
        torch.spmm,
        torch.sparse.mm,
        lambda matrix, dense: matrix @ dense,
        lambda matrix, dense: matrix.t() @ dense,
        lambda matrix, dense: torch.sparse.addmm(dense, matrix * 2, dense),
    ],
)
def test_a_product_with_a_sparse_matrix_is_one_operator_and_so_is_its_gradient(
    product: Callable[[Any, Any], Any],
) -> None:
    with fake_capture("H100-SXM") as capture:
        adjacency = graph().cuda()
        layer = Convolution(product).cuda()
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        for _ in range(2):
            layer(torch.randn(NODES, FEATURES, device="cuda"), adjacency).sum().backward()
            optimizer.step()
    trace = with_predicted_times(capture.trace)
    there, back = (one for one in trace.operators if one.name == "aten::_sparse_mm")
    assert (there.phase, back.phase) == ("forward", "backward")
    for one in (there, back):
        assert {(2, EDGES), (EDGES,), (NODES, 16)} == {tensor.shape for tensor in one.inputs}
        assert [tensor.shape for tensor in one.outputs] == [(NODES, 16)]
        assert one.seconds > 0


def test_a_sparse_matrix_has_the_memory_of_its_elements_and_tells_them() -> None:
    with FakeDevice("H100-SXM"):
        before = torch.cuda.memory_allocated()
        matrix = graph().coalesce().cuda()
        elements = matrix._nnz()
        rounded = [-(-size // 512) * 512 for size in (2 * 8 * elements, 4 * elements)]
        assert torch.cuda.memory_allocated() - before == sum(rounded)
        assert (matrix.is_sparse, matrix.layout, matrix.shape) == (True, torch.sparse_coo, (NODES, NODES))
        assert (matrix.is_coalesced(), matrix.values().shape) == (True, (elements,))
        assert matrix.to_dense().shape == (NODES, NODES)
        assert graph("cuda").half().dtype == torch.float16


def test_what_is_unknown_of_sparse_tensors_is_refused() -> None:
    with FakeDevice("H100-SXM"):
        matrix = graph().cuda()
        for use in (lambda: matrix @ matrix, matrix.cpu, lambda: matrix + matrix):
            with pytest.raises(NotImplementedError, match="SparseTensorImpl"):
                use()
