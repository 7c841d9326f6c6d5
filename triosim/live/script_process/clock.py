"""The simulated clock of a running script: everything that reads the time or sleeps does so in simulated time.

``time.time`` begins at the start time of the run, the other clocks of ``time`` at 0. Modules that wait for other threads,
processes or machines keep the real clock, and so do other threads than the script's main one when they sleep.
"""

from __future__ import annotations

import datetime
import logging
import os
import sys
import time
import timeit
from collections.abc import Callable, Iterator
from importlib.machinery import ExtensionFileLoader
from typing import Any

import torch
from torch.utils.benchmark.utils import timer

from triosim.live.items import ElapsedTime, EventDone, ReadClock
from triosim.live.script_process.task_feed import TaskFeed
from triosim.tracer.device import cuda_api
from triosim.tracer.patches import Patch, Patches
from triosim.tracer.recorder.script_lines import script_line

#: What reading a clock takes the host. It lets a loop end that waits for a time.
READ_SECONDS = 100e-9
#: Modules that keep the real clock, with all that is in them.
_REAL = frozenset(
    (
        *("threading", "_threading_local", "queue", "multiprocessing", "concurrent", "asyncio", "selectors", "sched"),
        *("subprocess", "socket", "socketserver", "ssl", "http", "urllib", "requests", "urllib3", "aiohttp", "uvloop"),
        *("signal", "tempfile", "random", "uuid", "triosim", "simpy"),
    )
)
_REAL_PARTS = (
    *("torch.distributed.elastic", "torch.distributed.distributed_c10d", "torch.distributed.rendezvous"),
    *("wandb.sdk.lib.service", "wandb.sdk.lib.asyncio_compat", "wandb.sdk.mailbox", "wandb.sdk.lib.timer"),
)
_real_time, _real_sleep = time.time, time.sleep
_Datetime = datetime.datetime


class SimulatedClock:
    """The clock of a running rank. ``start`` is the time of the day at which the run begins, in seconds since 1970."""

    def __init__(self, feed: TaskFeed, start: float) -> None:
        self._feed = feed
        self.start = start
        self._now = 0.0
        self._reads = 0  # since the simulation was asked

    def now(self) -> float:
        """Return the seconds since the run began. Another thread gets the time that the main one read last."""
        if not self._feed.is_of_this_thread:
            return self._now
        if self._feed.is_quiet and self._reads:  # nothing else happened since
            self._now += READ_SECONDS
            self._reads += 1
            return self._now
        self._take_reads()
        self._now = float(self._feed.ask(ReadClock()))
        self._reads = 1
        return self._now

    def sleep(self, seconds: float) -> None:
        """Let simulated time pass."""
        if seconds < 0:
            raise ValueError("sleep length must be non-negative")
        if not self._feed.is_of_this_thread:
            _real_sleep(seconds)
            return
        self._take_reads()
        self._feed.work(float(seconds), script_line())

    def _take_reads(self) -> None:
        """Let the host's time pass that reading the clock took."""
        if self._reads > 1:
            self._feed.work((self._reads - 1) * READ_SECONDS)
        self._reads = 0


def install(patches: Patches, feed: TaskFeed, start: float) -> None:
    """Let the script read simulated time until the patches are undone."""
    clock = SimulatedClock(feed, start)
    replaced = {getattr(time, name): (name, function) for name, function in _functions(clock)}
    patches.make(Patch(time, name, function) for name, function in replaced.values())
    simulated = _datetime(clock)
    by_identity = {id(real): function for real, (_, function) in replaced.items()} | {id(_Datetime): simulated}
    patches.rebind(by_identity, _functions_with_timers(), spared=lambda module: module == "time" or _is_real(module))
    loader = ExtensionFileLoader
    patches.make(
        Patch(loader, name, _with_datetime(getattr(loader, name))) for name in ("create_module", "exec_module")
    )
    patches.make(
        [Patch(logging, "_startTime", start, missing="leave"), Patch(os, "times", lambda: _times(clock.now()))]
    )
    events = _event(feed)
    for owner in (torch.cuda, torch.cuda.streams):
        patches.make([Patch(owner, "Event", events)])


def _times(seconds: float) -> os.times_result:
    """Return what ``os.times`` does of a process that computes all the time, and has started no others."""
    return os.times_result((seconds, 0.0, 0.0, 0.0, seconds))


def _functions(clock: SimulatedClock) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield the functions of ``time`` that are replaced, by name. Modules that keep the real clock get the real ones."""

    def chosen(name: str, simulated: Callable[..., Any]) -> tuple[str, Callable[..., Any]]:
        real = getattr(time, name)

        def function(*args: Any) -> Any:
            return (real if _keeps_real(sys._getframe(1)) else simulated)(*args)

        function.__name__ = function.__qualname__ = name
        return name, function

    def nanoseconds(seconds: float) -> int:
        return round(seconds * 1e9)

    def now() -> float:
        return clock.start + clock.now()

    yield chosen("time", now)
    yield chosen("time_ns", lambda: nanoseconds(clock.start) + nanoseconds(clock.now()))
    for name in ("perf_counter", "monotonic", "process_time", "thread_time"):
        yield chosen(name, clock.now)
        yield chosen(f"{name}_ns", lambda: nanoseconds(clock.now()))
    yield chosen("sleep", clock.sleep)
    localtime, gmtime, strftime = time.localtime, time.gmtime, time.strftime
    ctime, asctime = time.ctime, time.asctime
    yield chosen("localtime", lambda seconds=None: localtime(now() if seconds is None else seconds))
    yield chosen("gmtime", lambda seconds=None: gmtime(now() if seconds is None else seconds))
    yield chosen("strftime", lambda form, when=None: strftime(form, localtime(now()) if when is None else when))
    yield chosen("ctime", lambda seconds=None: ctime(now() if seconds is None else seconds))
    yield chosen("asctime", lambda when=None: asctime(localtime(now()) if when is None else when))
    get, get_ns = time.clock_gettime, time.clock_gettime_ns
    daily = time.CLOCK_REALTIME
    yield (
        "clock_gettime",
        lambda which: get(which) if _keeps_real(sys._getframe(1)) else (now() if which == daily else clock.now()),
    )
    yield (
        "clock_gettime_ns",
        lambda which: (
            get_ns(which) if _keeps_real(sys._getframe(1)) else nanoseconds(now() if which == daily else clock.now())
        ),
    )


def _keeps_real(frame: Any) -> bool:
    return _is_real(frame.f_globals.get("__name__") or "")


def _is_real(module: str) -> bool:
    return module.partition(".")[0] in _REAL or module.startswith(_REAL_PARTS)


def _functions_with_timers() -> Iterator[Any]:
    """Yield functions of the standard library and PyTorch that have a clock as the default of an argument."""
    for owner in (timeit, timeit.Timer, timer, timer.Timer):
        for function in vars(owner).values():
            if getattr(function, "__defaults__", None) and callable(function):
                yield function


def _datetime(clock: SimulatedClock) -> type[datetime.datetime]:
    """Return ``datetime.datetime`` with a ``now`` in simulated time. Every real one counts as one of it."""

    class Meta(type):
        def __instancecheck__(cls, value: object) -> bool:
            return isinstance(value, _Datetime) if cls is simulated else type.__instancecheck__(cls, value)

        def __subclasscheck__(cls, other: type) -> bool:
            return issubclass(other, _Datetime) if cls is simulated else type.__subclasscheck__(cls, other)

    def now(cls: Any, tz: datetime.tzinfo | None = None) -> Any:
        return cls.fromtimestamp(clock.start + clock.now(), tz)

    def utcnow(cls: Any) -> Any:
        return cls.fromtimestamp(clock.start + clock.now(), datetime.timezone.utc).replace(tzinfo=None)

    def today(cls: Any) -> Any:
        return now(cls)

    def __repr__(self: Any) -> str:  # noqa: N807
        return f"{'datetime.' if type(self) is simulated else ''}{_Datetime.__repr__(self)}"

    body = {one.__name__: classmethod(one) for one in (now, utcnow, today)}
    names = {"__module__": "datetime", "__qualname__": "datetime", "__slots__": (), "__doc__": _Datetime.__doc__}
    simulated: Any = Meta("datetime", (_Datetime,), {**names, **body, "__repr__": __repr__})
    return simulated  # type: ignore[no-any-return]


def _with_datetime(load: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that loads a module written in C, which derives from the ``datetime`` that C knows (pandas does)."""

    def function(*args: Any) -> Any:
        simulated, datetime.datetime = datetime.datetime, _Datetime  # type: ignore[misc]
        try:
            return load(*args)
        finally:
            datetime.datetime = simulated  # type: ignore[misc]

    return function


def _event(feed: TaskFeed) -> type[cuda_api.Event]:
    """Return the class of CUDA events, whose times are the simulation's where the script asked for timing."""

    class Event(cuda_api.Event):
        def __init__(self, enable_timing: bool = False, *_: Any, **__: Any) -> None:
            super().__init__()
            self._timed = bool(enable_timing)

        def record(self, stream: Any = None) -> Any:
            if not self._timed:
                return super().record(stream)
            with feed.timing():
                return super().record(stream)

        def query(self) -> bool:
            return not self._timed or self.number is None or bool(feed.ask(EventDone(self.number)))

        def elapsed_time(self, other: Any) -> float:
            if not (self._timed and getattr(other, "_timed", False)):
                raise ValueError("Both events must be created with argument 'enable_timing=True'.")
            if self.number is None or other.number is None:
                raise ValueError("Both events must be recorded before calculating elapsed time.")
            seconds = feed.ask(ElapsedTime(self.number, other.number))
            if seconds is None:
                raise RuntimeError("Both events must be completed before calculating elapsed time.")
            return float(seconds * 1e3)

    Event.__qualname__, Event.__module__ = "Event", "torch.cuda.streams"
    return Event
