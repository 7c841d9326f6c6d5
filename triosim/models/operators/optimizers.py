"""Optimizer steps of PyTorch, with one kernel for many parameters (for-each) or for all of them (fused).

AdamW (Loshchilov and Hutter 2019) keeps two states a parameter, SGD with momentum one. Both read the gradients, and
write the parameters and states in place. The tensors at one position of an operator's lists belong to one parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from triosim.models.operators.tape import Tape, Value

#: Steps of AdamW as for-each operators: the name, and which lists it reads; the first is written in place.
_ADAMW = (
    ("_foreach_mul_", ("parameters",)),
    ("_foreach_lerp_", ("means", "gradients")),
    ("_foreach_mul_", ("squares",)),
    ("_foreach_addcmul_", ("squares", "gradients", "gradients")),
    ("_foreach_sqrt", ("squares",)),
    ("_foreach_div_", ("roots",)),
    ("_foreach_add_", ("roots",)),
    ("_foreach_addcdiv_", ("parameters", "means", "roots")),
)


def adamw(tape: Tape) -> None:
    """``torch.optim.AdamW`` as it is by default on a GPU."""
    parameters, gradients = _trained(tape)
    lists = {"parameters": parameters, "gradients": gradients}
    lists |= {"means": _states(tape, parameters), "squares": _states(tape, parameters)}
    for name, read in _ADAMW:
        given = [value for one in read for value in lists[one]]
        if name == "_foreach_sqrt":
            lists["roots"] = [tape.new(value.shape, value.dtype) for value in lists["squares"]]
        tape.record(name, given, lists["roots" if name == "_foreach_sqrt" else read[0]])


def fused_adamw(tape: Tape) -> None:
    """``torch.optim.AdamW(fused=True)``."""
    parameters, gradients = _trained(tape)
    means, squares = _states(tape, parameters), _states(tape, parameters)
    steps = [_state(tape, parameter, (), "float32") for parameter in parameters]
    tape.record("_foreach_add_", steps, steps)
    written = [*parameters, *gradients, *means, *squares]
    tape.record("_fused_adamw_", [*written, *steps], written)


def master_adamw(tape: Tape) -> None:
    """A fused AdamW on fp32 copies of the parameters, which are then rounded (Micikevicius et al. 2018).

    Parameters in fp32 need no copies.
    """
    if tape.dtype == "float32":
        fused_adamw(tape)
        return
    parameters, gradients = _trained(tape)
    masters, means, squares = ([_state(tape, one, one.shape, "float32") for one in parameters] for _ in range(3))
    written = [*masters, *gradients, *means, *squares]
    tape.record("_fused_adamw_", written, written)
    tape.record("_foreach_copy_", [*parameters, *masters], parameters)


def sgd(tape: Tape) -> None:
    """``torch.optim.SGD`` with momentum and weight decay."""
    parameters, gradients = _trained(tape)
    decayed = [tape.new(value.shape, value.dtype) for value in gradients]
    tape.record("_foreach_add", [*gradients, *parameters], decayed)
    momenta = _states(tape, parameters)
    tape.record("_foreach_mul_", momenta, momenta)
    tape.record("_foreach_add_", [*momenta, *decayed], momenta)
    tape.record("_foreach_add_", [*parameters, *momenta], parameters)


def none(tape: Tape) -> None:
    """No optimizer: gradients alone."""
    _trained(tape)


OPTIMIZERS: Mapping[str, Callable[[Tape], None]] = {
    "adamw": adamw,
    "fused-adamw": fused_adamw,
    "master-adamw": master_adamw,
    "sgd": sgd,
    "none": none,
}


def _trained(tape: Tape) -> tuple[list[Value], list[Value]]:
    """Start the optimizer's phase; return the parameters that have gradients, and these."""
    pairs = tape.gradients()
    tape.phase, tape.layer = "optimizer", "optimizer"
    return [one for one, _ in pairs], [gradient for _, gradient in pairs]


def _states(tape: Tape, parameters: Sequence[Value]) -> list[Value]:
    return [_state(tape, one, one.shape, one.dtype) for one in parameters]


def _state(tape: Tape, parameter: Value, shape: tuple[int, ...], dtype: str) -> Value:
    state = tape.new(shape, dtype, category="optimizer_state")
    tape.owners[state.storage] = parameter.number
    return state
