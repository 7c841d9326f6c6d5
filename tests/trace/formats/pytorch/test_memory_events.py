"""Storages from the profiler's memory events, and from what was said of addresses."""

from __future__ import annotations

from triosim.trace import Operator, Phase, Storage, Tensor
from triosim.trace.formats.pytorch.kineto import MemoryEvent, Profile, Span, Work
from triosim.trace.formats.pytorch.memory_events import storages

CALLS = ((10.0, "forward", "fc"), (20.0, "forward", "out"), (30.0, "backward", "fc"), (40.0, "optimizer", "optimizer"))


def stored(
    events: list[tuple[float, int, int]],
    said: list[tuple[float, str]],
    *,
    gpu: bool = False,
    zeroed: float | None = None,
    known: dict[str, list[int]] | None = None,
    name: str = "aten::mm",
) -> list[Storage]:
    """The storages of a step of four calls: events are a moment, bytes and an address; ``zeroed`` is a ``zero_grad``'s."""
    annotations = [(moment, f"role: {text}") for moment, text in said]
    if zeroed is not None:
        annotations.append((zeroed, "Optimizer.zero_grad#SGD.zero_grad"))
    profile = Profile(
        calls=[Span(text, "main", moment, moment + 0.1, annotation=True) for moment, text in annotations],
        memory=[MemoryEvent(moment, "main", nbytes, address, gpu) for moment, nbytes, address in events],
        work=[Work("kernel", 0.0, 1.0)] if gpu else [],
    )
    moments = [(Span(layer, "main", start, start + 5), place) for place, (start, _, layer) in enumerate(CALLS)]
    return list(storages(profile, moments, [operator(place, name) for place in range(len(CALLS))], known))


def operator(place: int, name: str) -> Operator:
    _, phase, layer = CALLS[place]
    wanted: dict[str, Phase] = {"forward": "forward", "backward": "backward", "optimizer": "optimizer"}
    return Operator(place + 1, name, wanted[phase], layer, (Tensor(1, (2,)),), (), 1.0)


def test_what_the_step_takes_is_named_by_when_it_lives() -> None:
    found = stored(
        [(11, 64, 1), (12, 32, 2), (13, -32, 2), (21, 16, 3), (31, 8, 4), (32, -64, 1), (41, 4, 5), (42, -4, 5)], []
    )
    assert [(one.nbytes, one.category, one.layer, one.operator, one.last_operator) for one in found] == [
        (64, "activation", "fc", 0, 2),
        (32, "temporary", "fc", 0, 0),  # it is gone before its operator is over
        (16, "activation", "out", 1, None),
        (8, "gradient", "fc", 2, None),
        (4, "temporary", "optimizer", 3, 3),
    ]
    assert [(one.born, one.died) for one in found] == [(1, 6), (2, 3), (4, None), (5, None), (7, 8)]


def test_what_is_said_to_be_there_was_there_before() -> None:
    said = [
        (1.0, "parameter 100 40 fc.weight"),
        (2.0, "optimizer_state 200 80 fc.weight"),
        (6.0, "input 7 12 "),
        (50.0, "parameter 100 40 fc.weight"),
        (51.0, "gradient 9 40 fc.weight"),
    ]
    found = stored([(5, 12, 7), (31, 40, 9)], said)
    assert [(one.nbytes, one.category, one.layer, one.born, one.operator) for one in found] == [
        (40, "parameter", "fc", -2, -1),
        (80, "optimizer_state", "fc", -1, -1),
        (12, "input", "", 1, -1),
        (40, "gradient", "fc", 2, 2),
    ]


def test_what_the_backward_pass_leaves_beside_named_gradients_belongs_to_collectives() -> None:
    events = [(31, 40, 9), (32, 64, 8), (33, 16, 7), (34, -16, 7)]
    said = [(1.0, "parameter 100 40 fc.weight"), (51.0, "gradient 9 40 fc.weight")]
    left = {
        name: [one.category for one in stored(events, said, name=name)] for name in ("aten::mm", "c10d::allreduce_")
    }
    assert left["c10d::allreduce_"] == ["parameter", "gradient", "communication", "temporary"]
    assert left["aten::mm"] == ["parameter", "gradient", "gradient", "temporary"]


def test_an_old_gradient_that_nobody_saw_freed_was_freed_first() -> None:
    """On a host the profiler does not tell of the end of what was there before it began."""
    found = stored([(31, 40, 9)], [(1, "gradient 8 40 fc.weight"), (50, "gradient 9 40 fc.weight")])
    assert [(one.category, one.born, one.died) for one in found] == [("gradient", -1, 1), ("gradient", 2, None)]
    kept = stored([(31, 40, 9)], [(1, "gradient 8 40 fc.weight"), (50, "gradient 8 40 fc.weight")])
    assert [(one.category, one.born) for one in kept] == [("gradient", -1), ("gradient", 1)]


def test_an_old_gradient_lives_until_zero_grad_is_called() -> None:
    said = [(1.0, "gradient 8 40 fc.weight"), (50.0, "gradient 9 40 fc.weight")]
    found = stored([(11, 64, 1), (31, 40, 9)], said, zeroed=25.0)  # after the forward pass
    assert [(one.nbytes, one.born, one.died, one.last_operator) for one in found] == [
        (40, -1, 2, 1),
        (64, 1, None, None),
        (40, 3, None, None),
    ]


def test_a_zero_grad_after_the_backward_pass_is_not_the_old_gradient_s_end() -> None:
    """Its address may be the new one's at once; the free was before."""
    said = [(1.0, "gradient 8 40 fc.weight"), (50.0, "gradient 8 40 fc.weight")]
    found = stored([(11, 64, 1), (31, 40, 8)], said, zeroed=45.0)
    assert [(one.category, one.born, one.died) for one in found] == [
        ("gradient", -1, 1),
        ("activation", 2, None),
        ("gradient", 3, None),
    ]


def test_a_storage_has_the_number_of_its_tensors_or_one_that_no_tensor_has() -> None:
    said = [(1.0, "parameter 100 40 fc.weight"), (50.0, "gradient 9 40 fc.weight")]
    known = {"role: parameter 100 40 fc.weight": [7], "role: gradient 9 40 fc.weight": [3]}
    found = stored([(11, 64, 1), (31, 40, 9)], said, known=known)
    assert [(one.category, one.id) for one in found] == [("parameter", 7), ("activation", 8), ("gradient", 3)]


def test_no_two_storages_have_one_number() -> None:
    said = [(1.0, "parameter 100 40 a.weight"), (2.0, "parameter 200 80 b.weight")]
    known = {"role: parameter 100 40 a.weight": [1], "role: parameter 200 80 b.weight": [1]}
    assert [one.id for one in stored([(11, 64, 5)], said, known=known)] == [1, 2, 3]


def test_what_goes_and_was_never_seen_to_come_was_there_before() -> None:
    assert [(one.nbytes, one.category, one.born, one.died) for one in stored([(12, -256, 3)], [], gpu=True)] == [
        (256, "buffer", -1, 1)
    ]


def test_with_a_gpu_the_host_s_memory_is_none_of_the_trace_s() -> None:
    profile = Profile(memory=[MemoryEvent(1.0, "main", 64, 1, on_gpu=False)], work=[Work("kernel", 0.0, 1.0)])
    assert storages(profile, [], []) == ()
