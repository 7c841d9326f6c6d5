"""Small traces whose every figure can be worked out by hand, and what draws a task stream without an engine."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from triosim.compute.models.linear import Linear
from triosim.config import RunConfig
from triosim.extrapolators.core.plan import ParallelPlan, plan
from triosim.tasks import Collective, Communicator, Compute, Handle, Task, TaskStream
from triosim.trace import Category, Operator, Phase, Tensor, Trace


class Builder:
    """Writes operators one by one; tensors get ids in order, and a storage of their own."""

    def __init__(self, batch_size: int) -> None:
        self.batch_size = batch_size
        self.operators: list[Operator] = []
        self._tensors = 0

    def tensor(
        self, *shape: int, category: Category = "activation", dtype: str = "float32", of: Tensor | None = None
    ) -> Tensor:
        """A new tensor; ``of`` is the parameter that a gradient or state is about."""
        self._tensors += 1
        return Tensor(self._tensors, shape, dtype, category, self._tensors, None if of is None else of.id)

    def view(self, tensor: Tensor, *shape: int) -> Tensor:
        """The same bytes in another shape."""
        self._tensors += 1
        return Tensor(self._tensors, shape, tensor.dtype, tensor.category, tensor.storage)

    def parameter(self, *shape: int) -> Tensor:
        return self.tensor(*shape, category="parameter")

    def run(
        self,
        name: str,
        inputs: list[Tensor],
        outputs: list[Tensor],
        *,
        layer: str,
        seconds: float = 1e-3,
        phase: Phase = "forward",
        forward: Operator | None = None,
    ) -> Operator:
        operator = Operator(
            len(self.operators) + 1,
            name,
            phase,
            layer,
            tuple(inputs),
            tuple(outputs),
            seconds,
            forward=None if forward is None else forward.id,
        )
        self.operators.append(operator)
        return operator

    def backward(
        self, name: str, forward: Operator, gradient: Tensor, *, seconds: float = 2e-3, data: bool = True
    ) -> Tensor | None:
        """Differentiate: return the gradient of the first input that is no parameter, unless it has none."""
        source = next((t for t in forward.inputs if t.category != "parameter"), None)
        into = self.tensor(*source.shape, category="gradient") if source is not None and data else None
        parameters = [t for t in forward.inputs if t.category == "parameter"]
        gradients = [self.tensor(*t.shape, category="gradient", of=t) for t in parameters]
        self.run(
            name,
            [gradient, *forward.inputs],
            [*([into] if into is not None else []), *gradients],
            layer=forward.layer,
            phase="backward",
            forward=forward,
            seconds=seconds,
        )
        return into

    def adam(self, parameters: list[Tensor], seconds: float = 1e-3) -> None:
        """A for-each optimizer of two operators."""
        gradients = {t.parameter: t for op in self.operators for t in op.outputs if t.parameter is not None}
        states = [self.tensor(*p.shape, category="optimizer_state", of=p) for p in parameters]
        grads = [gradients[p.id] for p in parameters]
        scratch = [self.tensor(*p.shape, category="temporary") for p in parameters]
        self.run(
            "aten::_foreach_lerp_", [*states, *grads], states, layer="optimizer", phase="optimizer", seconds=seconds
        )
        self.run("aten::_foreach_sqrt", states, scratch, layer="optimizer", phase="optimizer", seconds=seconds)
        self.run(
            "aten::_foreach_addcdiv_",
            [*parameters, *states, *scratch],
            parameters,
            layer="optimizer",
            phase="optimizer",
            seconds=seconds,
        )

    def trace(self) -> Trace:
        return Trace(tuple(self.operators), self.batch_size, model="synthetic", gpu="made up")


def mlp(batch: int = 8, sizes: tuple[int, ...] = (16, 32, 16, 4), seconds: float = 1e-3) -> Trace:
    """Linear layers with a ReLU between them and a cross entropy: ``fc0``, ``relu0``, ``fc1``, ..."""
    b = Builder(batch)
    data = b.tensor(batch, sizes[0], category="input")
    labels = b.tensor(batch, category="input", dtype="int64")
    steps: list[tuple[str, Operator]] = []
    parameters: list[Tensor] = []
    for index, (before, after) in enumerate(pairwise(sizes)):
        weight, bias = b.parameter(after, before), b.parameter(after)
        parameters += [weight, bias]
        out = b.tensor(batch, after)
        linear = b.run("aten::linear", [data, weight, bias], [out], layer=f"fc{index}", seconds=seconds)
        steps.append(("AddmmBackward0", linear))
        data = out
        if index < len(sizes) - 2:
            data = b.tensor(batch, after)
            relu = b.run("aten::relu", [out], [data], layer=f"relu{index}", seconds=seconds)
            steps.append(("ReluBackward0", relu))
    loss = b.tensor()
    steps.append(
        ("NllLossBackward0", b.run("aten::cross_entropy_loss", [data, labels], [loss], layer="loss", seconds=seconds))
    )
    gradient = b.tensor(category="gradient")
    for index, (name, operator) in enumerate(reversed(steps)):
        first = index == len(steps) - 1
        found = b.backward(name, operator, gradient, seconds=2 * seconds, data=not first)
        gradient = found if found is not None else gradient
    b.adam(parameters)
    return b.trace()


def convnet(batch: int = 8, channels: int = 8) -> Trace:
    """``conv1``, ``conv2``, their sum (a skip connection over ``conv2``), ``pool``, ``fc`` and the loss."""
    b = Builder(batch)
    image = b.tensor(batch, 3, 8, 8, category="input")
    labels = b.tensor(batch, category="input", dtype="int64")
    weights = [b.parameter(channels, 3, 3, 3), b.parameter(channels, channels, 3, 3), b.parameter(10, channels)]
    first, second, total = (b.tensor(batch, channels, 8, 8) for _ in range(3))
    pooled, logits, loss = b.tensor(batch, channels, 1, 1), b.tensor(batch, 10), b.tensor()
    flat = b.view(pooled, batch, channels)
    conv1 = b.run("aten::conv2d", [image, weights[0]], [first], layer="conv1", seconds=4e-3)
    conv2 = b.run("aten::conv2d", [first, weights[1]], [second], layer="conv2", seconds=4e-3)
    add = b.run("aten::add", [second, first], [total], layer="add", seconds=1e-3)
    pool = b.run("aten::adaptive_avg_pool2d", [total], [pooled], layer="pool")
    view = b.run("aten::flatten", [pooled], [flat], layer="flatten", seconds=0.0)
    linear = b.run("aten::linear", [flat, weights[2]], [logits], layer="fc")
    entropy = b.run("aten::cross_entropy_loss", [logits, labels], [loss], layer="loss")
    gradient = b.tensor(category="gradient")
    names = ("NllLossBackward0", "AddmmBackward0", "ViewBackward0", "MeanBackward0", "AddBackward0")
    for name, operator in zip(names, (entropy, linear, view, pool, add), strict=True):
        found = b.backward(name, operator, gradient)
        assert found is not None
        gradient = found
    into = b.backward("ConvolutionBackward0", conv2, gradient, seconds=8e-3)
    assert into is not None
    joined = b.tensor(*first.shape, category="gradient")
    b.run("aten::add", [into, gradient], [joined], layer="add", phase="backward")
    b.backward("ConvolutionBackward0", conv1, joined, seconds=4e-3, data=False)
    b.adam(weights)
    return b.trace()


def transformer(
    batch: int = 2, tokens: int = 8, width: int = 16, heads: int = 4, blocks: int = 1, vocabulary: int = 64
) -> Trace:
    """Embedding, blocks with separate q, k, v, projection to the vocabulary, loss. Layers are named as in GPT."""
    b = Builder(batch)
    words = b.tensor(batch, tokens, category="input", dtype="int64")
    labels = b.tensor(batch, tokens, category="input", dtype="int64")
    parameters: list[Tensor] = []
    tape: list[tuple[str, Operator]] = []

    def parameter(*shape: int) -> Tensor:
        parameters.append(b.parameter(*shape))
        return parameters[-1]

    def step(name: str, node: str, inputs: list[Tensor], shape: tuple[int, ...], layer: str) -> Tensor:
        out = b.tensor(*shape)
        tape.append((node, b.run(name, inputs, [out], layer=layer)))
        return out

    def linear(data: Tensor, size: int, layer: str) -> Tensor:
        weight = parameter(size, data.shape[-1])
        return step("aten::linear", "AddmmBackward0", [data, weight], (*data.shape[:-1], size), layer)

    def norm(data: Tensor, layer: str) -> Tensor:
        weight = parameter(width)
        return step("aten::native_layer_norm", "NativeLayerNormBackward0", [data, weight], data.shape, layer)

    def heads_of(data: Tensor) -> Tensor:
        return b.view(data, batch, heads, tokens, width // heads)

    full = (batch, tokens, width)
    stream = b.tensor(*full)
    tape.append(
        ("EmbeddingBackward0", b.run("aten::embedding", [parameter(vocabulary, width), words], [stream], layer="wte"))
    )
    for index in range(blocks):
        at = f"h.{index}"
        normed = norm(stream, f"{at}.ln_1")
        q, k, v = (heads_of(linear(normed, width, f"{at}.attn.{name}")) for name in "qkv")
        mixed = step(
            "aten::scaled_dot_product_attention", "ScaledDotProductBackward0", [q, k, v], q.shape, f"{at}.attn"
        )
        out = linear(b.view(mixed, *full), width, f"{at}.attn.proj")
        stream = step("aten::add", "AddBackward0", [stream, out], full, at)
        inner = linear(norm(stream, f"{at}.ln_2"), 4 * width, f"{at}.mlp.fc")
        active = step("aten::gelu", "GeluBackward0", [inner], inner.shape, f"{at}.mlp.act")
        out = linear(active, width, f"{at}.mlp.proj")
        stream = step("aten::add", "AddBackward0", [stream, out], full, at)
    logits = linear(norm(stream, "ln_f"), vocabulary, "lm_head")
    loss = b.tensor()
    tape.append(("NllLossBackward0", b.run("aten::cross_entropy_loss", [logits, labels], [loss], layer="loss")))
    gradient = b.tensor(category="gradient")
    for node, operator in reversed(tape):
        shape = operator.outputs[0].shape
        fitting = gradient if gradient.shape == shape else b.view(gradient, *shape)
        found = b.backward(node, operator, fitting, data=operator.layer != "wte")
        gradient = found if found is not None else gradient
    b.adam(parameters)
    return b.trace()


def planned(trace: Trace, parallel: Any, gpus: int | None = None, slowdown: Any = None, **options: Any) -> ParallelPlan:
    """The plan for a trace, with a fresh compute model."""
    return plan(trace, parallel, gpus=gpus, config=RunConfig.of(**options), model=Linear(), slowdown=slowdown)


def draw(stream: TaskStream, rank: int = 0) -> list[Task]:
    """Every task of a stream, each answered with a handle."""
    drawn: list[Task] = []
    answer: Handle | None = None
    while True:
        try:
            task = stream.send(answer)
        except StopIteration:
            return drawn
        drawn.append(task)
        answer = Handle(rank, task)


def operators_of(tasks: list[Task]) -> list[Operator]:
    """The operators that a stream computes, in order."""
    return [operator for task in tasks if isinstance(task, Compute) for operator in task.operators]


def collectives_of(tasks: list[Task], axis: str | None = None) -> list[tuple[str, float]]:
    """Kind and bytes of a stream's collectives, in order."""
    return [
        (task.kind, task.nbytes) for task in tasks if isinstance(task, Collective) and axis in (None, task.group.name)
    ]


def groups_of(tasks: list[Task]) -> dict[str, Communicator]:
    """The communicators that a stream uses, by name."""
    return {task.group.name: task.group for task in tasks if isinstance(task, Collective)}
