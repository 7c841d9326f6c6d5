"""Calls any operator of a trace on real tensors: arguments from its tensors and attributes, by PyTorch's own schema."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from triosim.trace import Operator
from triosim.tracer.benchmarks import fused_kernels
from triosim.tracer.benchmarks.not_callable import NotCallable

#: Arguments that a trace may leave out and that no operator's time depends on, by their names.
_USUAL: Mapping[str, Any] = {
    **{"p": 0.1, "eps": 1e-5, "momentum": 0.1, "train": True, "training": True, "threshold": 0.0, "dim": -1, "scale": 1.0},
    **{"half_to_float": False, "reduction": 1, "ignore_index": -100, "padding_idx": -1},
    **{"scale_grad_by_freq": False, "other": 1.0, "value": 1.0, "exponent": 2.0, "scalar": 1.0, "weight": 0.5},
    **{"dropout_p": 0.0, "is_causal": False, "compute_log_sumexp": True, "cudnn_enabled": True, "benchmark": True},
    **{"lr": 1e-9, "beta1": 0.9, "beta2": 0.999, "weight_decay": 0.0, "amsgrad": False, "maximize": False, "nesterov": False},
    **{"dampening": 0.0, "is_first_step": False},
}  # fmt: skip
#: The list that an optimizer reads only with AMSGrad.
_AMSGRAD = "max_exp_avg_sqs"


def bind(torch: Any, operator: Operator, tensors: Sequence[Any]) -> Callable[[], Any]:
    """Return a function without arguments that runs an operator on tensors of its inputs' shapes. Raises ``NotCallable``."""
    if made := fused_kernels.bind(torch, operator, tensors):
        return made
    if "scaled_mm" in operator.name:  # the second factor lies by columns
        tensors = [tensors[0], tensors[1].t().contiguous().t(), *tensors[2:]]
    if "grouped_mm" in operator.name:
        tensors = _with_even_groups(torch, operator, tensors)
    packet = getattr(torch.ops.aten, operator.name.removeprefix("aten::").partition(".")[0], None)
    if packet is None:
        raise NotCallable("PyTorch has no such operator")
    found, reason = None, "no overload takes its tensors"
    for overload in _overloads(packet):
        try:
            arguments, taken = _arguments(torch, overload._schema.arguments, operator, tensors)
        except NotCallable as error:
            reason = str(error)
            continue
        if found is None or taken > found[2]:
            found = overload, arguments, taken
    if found is None:
        raise NotCallable(reason)
    overload, arguments, _ = found
    positional = [value for name, value, keyword in arguments if not keyword]
    named = {name: value for name, value, keyword in arguments if keyword}
    return lambda: overload(*positional, **named)


def _with_even_groups(torch: Any, operator: Operator, tensors: Sequence[Any]) -> list[Any]:
    """Return the tensors of a grouped product with groups of equal sizes: their ends among the rows of its first factor."""
    first, second = operator.inputs[:2]
    both_flat = len(second.shape) == 2  # the groups lie along what is summed over
    groups, length = (operator.outputs[0].shape[0], first.shape[1]) if both_flat else (second.shape[0], first.shape[0])
    ends = [length * (number + 1) // groups for number in range(groups)]
    made = torch.tensor(ends, dtype=torch.int32, device=tensors[0].device)
    return [made if place == 2 else tensor for place, tensor in enumerate(tensors)]


def _overloads(packet: Any) -> Iterator[Any]:
    for name in packet.overloads():
        if "out" not in name:
            yield getattr(packet, name)


def _arguments(
    torch: Any, declared: Sequence[Any], operator: Operator, tensors: Sequence[Any]
) -> tuple[list[tuple[str, Any, bool]], int]:
    """Return the arguments of an overload (name, value, by keyword), and how many of the attributes it takes."""
    empty = () if operator.attributes.get("amsgrad") else (_AMSGRAD,)
    lists = [one for one in declared if str(one.type) == "List[Tensor]" and one.name not in empty]
    single = [one for one in declared if str(one.type) == "Tensor"]
    left = list(tensors)
    spare = len(left) - len(single)  # tensors for optional arguments, or for lists
    if spare < 0 or (lists and spare % len(lists)):
        raise NotCallable("no overload takes its tensors")
    each = spare // len(lists) if lists else 0
    if lists and not single:
        _check_lists(left, each)
    derived = _of_convolution(operator)
    made: list[tuple[str, Any, bool]] = []
    taken = 0
    for one in declared:
        kind = str(one.type)
        if kind == "Tensor":
            value = left.pop(0)
        elif one.name in empty:
            value = []
        elif kind == "List[Tensor]":
            value, left = left[:each], left[each:]
        elif kind == "Optional[Tensor]":
            spare, value = (spare - 1, left.pop(0)) if spare > 0 and not lists else (spare, None)
        elif one.name in operator.attributes:
            value, taken = operator.attributes[one.name], taken + 1
        elif one.name in derived:
            value = derived[one.name]
        else:
            value = _usual(torch, one, operator)
        made.append((one.name, value, one.kwarg_only))
    if left:
        raise NotCallable("no overload takes all of its tensors")
    return made, taken


def _check_lists(tensors: Sequence[Any], each: int) -> None:
    """Raise ``NotCallable`` where lists of so many tensors do not belong together; steps and factors are scalars."""
    shapes = [tensor.shape for tensor in tensors]
    for start in range(each, len(shapes), each):
        of_list = shapes[start : start + each]
        if any(of_list) and of_list != shapes[:each]:
            raise NotCallable("its lists of tensors differ in shape")


def _of_convolution(operator: Operator) -> Mapping[str, Any]:
    """Return the arguments of a convolution's backward pass that say which gradients it computes; of others none."""
    if not operator.name.endswith("convolution_backward"):
        return {}
    gradient, read, weight = (tensor.shape for tensor in operator.inputs[:3])
    computed = {tensor.shape for tensor in operator.outputs}
    bias = gradient[1:2]
    return {"bias_sizes": bias, "output_mask": [shape in computed for shape in (read, weight, bias)]}


def _usual(torch: Any, argument: Any, operator: Operator) -> Any:
    """Return the value of an argument that a trace leaves out. Raises ``NotCallable``."""
    if "dtype" in argument.name and operator.inputs and operator.outputs:
        same = operator.inputs[0].dtype == operator.outputs[0].dtype
        if not (same and argument.has_default_value()):
            return getattr(torch, operator.outputs[0].dtype)
    if argument.name == "num_weights":
        return operator.outputs[0].shape[0]
    if argument.has_default_value():
        return argument.default_value
    if argument.name in _USUAL:
        value, whole = _USUAL[argument.name], bool(operator.inputs) and "int" in operator.inputs[0].dtype
        return int(value) if whole and isinstance(value, float) else value
    if str(argument.type).startswith("Optional"):
        return None
    raise NotCallable(f"the trace does not say its argument '{argument.name}'")
