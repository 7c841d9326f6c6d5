"""Times from lightly profiled steps go to the calls of the one that was profiled in full."""

from __future__ import annotations

import pytest

from triosim.trace.formats.pytorch.kineto import Profile, Span, Work
from triosim.trace.formats.pytorch.light_profiles import outermost, with_light_times

MAIN = "main"


def step(*calls: tuple[str, float, float], first: int | None = None, thread: str = MAIN) -> Profile:
    """A step of calls with a start and a length; with ``first`` they are numbered from there."""
    spans = [
        Span(name, thread, start, start + length, order, None if first is None else first + order)
        for order, (name, start, length) in enumerate(calls)
    ]
    return Profile(spans)


def lengths(profile: Profile) -> dict[int | None, float]:
    return {call.function: call.end - call.start for call in profile.calls}


def test_the_middle_step_s_calls_get_the_numbers() -> None:
    full = step(("conv", 0, 100), ("relu", 100, 50), first=7)
    found = with_light_times(full, [step(("conv", 0, 30), ("relu", 35, 10))])
    assert found is not None
    assert lengths(found) == {7: 30.0, 8: 10.0}
    assert [call.after for call in found.calls] == [5.0, 0.0]  # what the host does between the calls is the first one's


def test_each_call_takes_the_median_stretched_to_the_usual_step() -> None:
    """Three steps of 40, 60 and 50: each is disturbed in another call, and the medians alone would be 20 + 10 + 10."""
    full = step(("a", 0, 9), ("b", 10, 9), ("c", 20, 9), first=0)
    light = [
        step(("a", 0, 20), ("b", 20, 10), ("c", 30, 10)),
        step(("a", 0, 20), ("b", 20, 30), ("c", 50, 10)),
        step(("a", 0, 20), ("b", 20, 10), ("c", 30, 20)),
    ]
    found = with_light_times(full, light)
    assert found is not None
    assert lengths(found) == {0: pytest.approx(25.0), 1: pytest.approx(12.5), 2: pytest.approx(12.5)}


def test_with_a_gpu_the_middle_step_s_kernels_and_calls_stay_as_they_are() -> None:
    full = step(("a", 0, 9), ("b", 10, 9), first=0)
    light = [step(("a", 0, 10 * one), ("b", 100, 10 * one)) for one in (1, 2, 3)]
    for one in light:
        one.work.append(Work("kernel", 0.0, 1.0))
    found = with_light_times(full, light)
    assert found is light[1]
    assert lengths(found) == {0: 20.0, 1: 20.0}


def test_a_call_that_only_one_step_has_keeps_its_time_at_the_others_speed() -> None:
    """A data loader fetches now and then: the full step, three times as slow, has one call more in 21, a light one another."""
    names = [f"call{number}" for number in range(20)]
    full = step(
        *((name, 30.0 * place, 30.0) for place, name in enumerate([*names[:10], "fetch", *names[10:]])), first=0
    )
    light = step(*((name, 10.0 * place, 10.0) for place, name in enumerate([*names, "other"])))
    found = with_light_times(full, [light])
    assert found is not None
    times = lengths(found)
    assert times[10] == pytest.approx(10.0)  # 30 at a third
    assert times[0] == times[20] == pytest.approx(10.0)
    assert None in times  # the other one is no call of the step that was profiled in full


def test_another_step_is_left_out() -> None:
    full = step(("a", 0, 9), ("b", 10, 9), first=0)
    other = step(("x", 0, 9), ("y", 10, 9))
    assert with_light_times(full, [other]) is None
    assert with_light_times(full, []) is None
    same = step(("a", 0, 2), ("b", 10, 2))
    assert with_light_times(full, [other, same]) is same


def test_calls_inside_of_calls_and_annotations_are_no_outermost_calls() -> None:
    """An annotation is looked through, except that what is done to say a tensor's role is no call of the step."""
    outer, inner = Span("outer", MAIN, 0, 10), Span("inner", MAIN, 2, 5)
    annotation, inside = Span("train", MAIN, 20, 30, annotation=True), Span("inside", MAIN, 21, 25)
    role, said = Span("role: parameter 1 2 w", MAIN, 40, 50, annotation=True), Span("aten::detach", MAIN, 41, 42)
    elsewhere = Span("elsewhere", "loader", 0, 1)
    profile = Profile([said, role, inside, annotation, inner, outer, elsewhere])
    assert outermost(profile, {MAIN}) == [outer, inside]


def test_threads_of_a_loader_do_not_matter() -> None:
    full = step(("a", 0, 9), ("b", 10, 9), first=0)
    full.calls.append(Span("pin", "pinning", 3, 4))
    found = with_light_times(full, [step(("a", 0, 2), ("b", 10, 2))])
    assert found is not None
    assert lengths(found) == {0: 2.0, 1: 2.0}
