"""The operators that the networks of this folder are made of, as PyTorch runs them forward and backward."""

from __future__ import annotations

from builder import Step

from triosim import Operator, Tensor


def convolution(
    step: Step, layer: str, x: Tensor, channels: int, kernel: int, *, stride: int = 1, bias: bool = False
) -> Tensor:
    """2D convolution with padding that keeps the size at stride 1. FLOPs: 2 N K P Q C R S."""
    n, c, h, w = x.shape
    p, q = (h - 1) // stride + 1, (w - 1) // stride + 1
    parameters = [step.parameter(channels, c, kernel, kernel)]
    if bias:
        parameters.append(step.parameter(channels))
    y = step.tensor((n, channels, p, q))
    flops = 2.0 * n * channels * p * q * c * kernel * kernel
    call = step.call("aten::conv2d", layer, [x, *parameters], [y], flops=flops)
    wanted = parameters if x.category == "input" else [x, *parameters]
    cost = flops * (1 if x.category == "input" else 2)
    step.differentiate(call, "ConvolutionBackward0", [x, parameters[0]], wanted, flops=cost)
    return y


def batch_norm(step: Step, layer: str, x: Tensor) -> Tensor:
    """Batch normalization, with the counter of batches that the module keeps."""
    channels = x.shape[1]
    weight, bias = step.parameter(channels), step.parameter(channels)
    counter = step.tensor((), "buffer", dtype="int64")
    running = [step.tensor((channels,), "buffer") for _ in range(2)]
    step.call("aten::add_", layer, [counter], [counter])
    y, *saved = (step.tensor(x.shape), step.tensor((channels,)), step.tensor((channels,)))
    # The input is read twice: for its statistics, then to be normalized.
    call = step.call(
        "aten::batch_norm",
        layer,
        [x, weight, bias, *running],
        [y, *saved, *running],
        flops=8.0 * x.numel,
        nbytes=3.0 * x.nbytes,
    )
    step.differentiate(call, "CudnnBatchNormBackward0", [x, weight, *saved], [x, weight, bias], flops=12.0 * x.numel)
    return y


def relu_(step: Step, layer: str, x: Tensor) -> Tensor:
    """Rectifier, in place."""
    call = step.call("aten::relu_", layer, [x], [x], flops=x.numel)
    step.differentiate(call, "ReluBackward0", [x], [x], flops=x.numel)
    return x


def add_(step: Step, layer: str, x: Tensor, y: Tensor) -> Tensor:
    """Residual addition into the first operand."""
    step.call("aten::add_", layer, [x, y], [x], flops=x.numel)
    step.pass_on(x, x, y)
    return x


def add(step: Step, layer: str, x: Tensor, y: Tensor) -> Tensor:
    """Residual addition of two tensors of one shape."""
    z = step.tensor(x.shape)
    step.call("aten::add", layer, [x, y], [z], flops=z.numel)
    step.pass_on(z, x, y)
    return z


def max_pool(step: Step, layer: str, x: Tensor, kernel: int) -> Tensor:
    """Maximum pooling at stride 2, which keeps the indices of the maxima."""
    n, c, h, w = x.shape
    shape = (n, c, h // 2, w // 2)
    y, indices = step.tensor(shape), step.tensor(shape, dtype="int64")
    call = step.call("aten::max_pool2d", layer, [x], [y, indices], flops=float(y.numel * kernel * kernel))
    step.differentiate(call, "MaxPool2DWithIndicesBackward0", [x, indices], [x], flops=y.numel)
    return y


def average_pool(step: Step, layer: str, x: Tensor, size: int) -> Tensor:
    """Adaptive average pooling to ``size`` x ``size``."""
    y = step.tensor((*x.shape[:2], size, size))
    call = step.call("aten::adaptive_avg_pool2d", layer, [x], [y], flops=x.numel)
    name = "MeanBackward1" if size == 1 else "AdaptiveAvgPool2DBackward0"
    step.differentiate(call, name, [] if size == 1 else [x], [x], flops=x.numel)
    return y


def view(step: Step, name: str, layer: str, x: Tensor, *shape: int) -> Tensor:
    """The same bytes in another shape; ``name`` as in ``aten::view`` and ``ViewBackward0``."""
    y = step.tensor(shape, x.category, dtype=x.dtype, view_of=x)
    call = step.call(f"aten::{name}", layer, [x], [y], view=True)
    if x.category != "input":
        node = {"flatten": "View", "reshape": "View"}.get(name, name.capitalize())
        step.differentiate(call, f"{node}Backward0", [], [x], view=True)
    return y


def linear(
    step: Step,
    layer: str,
    x: Tensor,
    features: int,
    *,
    bias: bool = True,
    weight: Tensor | None = None,
    category: str = "activation",
) -> Tensor:
    """Matrix product with a weight of features x inputs. FLOPs: 2 M N K."""
    rows, depth = x.numel // x.shape[-1], x.shape[-1]
    parameters = [weight if weight is not None else step.parameter(features, depth)]
    if bias:
        parameters.append(step.parameter(features))
    y = step.tensor((*x.shape[:-1], features), category)
    flops = 2.0 * rows * features * depth
    call = step.call("aten::linear", layer, [x, *parameters], [y], flops=flops)
    name = "AddmmBackward0" if bias else "MmBackward0"
    step.differentiate(call, name, [parameters[0], x], [x, *parameters], flops=2 * flops)
    return y


def dropout(step: Step, layer: str, x: Tensor) -> Tensor:
    """Dropout, which keeps its mask."""
    y, mask = step.tensor(x.shape), step.tensor(x.shape, dtype="bool")
    call = step.call("aten::dropout", layer, [x], [y, mask], flops=x.numel)
    step.differentiate(call, "NativeDropoutBackward0", [mask], [x], flops=x.numel)
    return y


def layer_norm(step: Step, layer: str, x: Tensor) -> Tensor:
    """Layer normalization over the last dimension."""
    weight, bias = step.parameter(x.shape[-1]), step.parameter(x.shape[-1])
    y, *saved = (step.tensor(x.shape), step.tensor((*x.shape[:-1], 1)), step.tensor((*x.shape[:-1], 1)))
    call = step.call("aten::layer_norm", layer, [x, weight, bias], [y, *saved], flops=8.0 * x.numel)
    node = "NativeLayerNormBackward0"
    step.differentiate(call, node, [x, *saved, weight, bias], [x, weight, bias], flops=12.0 * x.numel)
    return y


def gelu(step: Step, layer: str, x: Tensor) -> Tensor:
    """Gaussian error linear unit."""
    y = step.tensor(x.shape)
    call = step.call("aten::gelu", layer, [x], [y], flops=8.0 * x.numel)
    step.differentiate(call, "GeluBackward0", [x], [x], flops=12.0 * x.numel)
    return y


def embedding(step: Step, layer: str, indices: Tensor, weight: Tensor) -> Tensor:
    """Rows of a table; the gradient is as large as the table."""
    y = step.tensor((*indices.shape, weight.shape[1]))
    call = step.call("aten::embedding", layer, [weight, indices], [y], nbytes=2.0 * y.nbytes + indices.nbytes)
    step.differentiate(call, "EmbeddingBackward0", [indices], [weight], flops=y.numel)
    return y


def attention(step: Step, layer: str, x: Tensor, heads: int) -> Tensor:
    """Self-attention from the joint queries, keys and values: split, per-head views, fused attention. FLOPs: 4 b h t^2 d."""
    b, t, width = x.shape
    h, d = width // 3, width // 3 // heads
    parts = [step.tensor((b, t, h), view_of=x) for _ in range(3)]
    split = step.call("aten::split", layer, [x], parts, view=True)
    _joined(step, split, parts, x)
    q, k, v = (
        view(step, "transpose", layer, view(step, "view", layer, part, b, t, heads, d), b, heads, t, d)
        for part in parts
    )
    y, sums = step.tensor((b, heads, t, d)), step.tensor((b, heads, t))
    flops = 4.0 * b * heads * t * t * d
    call = step.call("aten::scaled_dot_product_attention", layer, [q, k, v], [y, sums], flops=flops)
    node = "ScaledDotProductEfficientAttentionBackward0"
    step.differentiate(call, node, [q, k, v, y, sums], [q, k, v], flops=2.5 * flops)
    return view(step, "reshape", layer, view(step, "transpose", layer, y, b, t, heads, d), b, t, h)


def _joined(step: Step, split: Operator, parts: list[Tensor], x: Tensor) -> None:
    """Put on the tape that the gradients of the parts are copied into one."""

    def run() -> None:
        gradients = [step.gradients.pop(part.id) for part in parts]
        joined = step.tensor(x.shape, "gradient")
        step.gradients[x.id] = joined
        step.call("SplitBackward0", split.layer, gradients, [joined], phase="backward", forward=split)

    step.tape(run)


def position_sum(step: Step, layer: str, x: Tensor, positions: Tensor) -> Tensor:
    """Addition of the same positions to each sample; their gradient is summed over the batch."""
    y = step.tensor(x.shape)
    call = step.call("aten::add", layer, [x, positions], [y], flops=y.numel)

    def run() -> None:
        incoming = step.gradients.pop(y.id)
        step.gradients[x.id] = incoming
        step.gradients[positions.id] = made = step.tensor(positions.shape, "gradient")
        step.call("AddBackward0", layer, [incoming], [made], flops=y.numel, phase="backward", forward=call)

    step.tape(run)
    return y


def cross_entropy(step: Step, layer: str, logits: Tensor, target: Tensor) -> Operator:
    """The loss: log-softmax and negative log-likelihood, whose gradients are two nodes."""
    loss = step.tensor((), "output")
    log_probabilities, weight = step.tensor(logits.shape), step.tensor(())
    nbytes = 3.0 * logits.nbytes
    outputs = [loss, log_probabilities, weight]
    call = step.call(
        "aten::cross_entropy_loss", layer, [logits, target], outputs, flops=6.0 * logits.numel, nbytes=nbytes
    )
    step.differentiate(
        call, "LogSoftmaxBackward0", [log_probabilities], [logits], flops=4.0 * logits.numel, output=log_probabilities
    )
    saved = [log_probabilities, target, weight]
    step.differentiate(call, "NllLossBackward0", saved, [log_probabilities], flops=logits.shape[0])
    return call
