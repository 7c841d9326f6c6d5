"""The rank's end of the connection: sends what the script launches while it runs, and asks the simulation for times."""

from __future__ import annotations

import os
import threading
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

from triosim.live.items import (
    Communicated,
    Ended,
    Groups,
    HostWork,
    Item,
    NewOperator,
    Question,
    ReadClock,
    Said,
    StepOver,
    TimedEvent,
)
from triosim.trace import Mark, Operator, Tensor
from triosim.tracer.distributed.process_groups import ProcessGroups
from triosim.tracer.recorder.recorded_step import RecordedOperator, RecordedStep
from triosim.tracer.recorder.recorded_trace import category_of
from triosim.tracer.recorder.script_lines import script_line

#: From so many items on they are sent. The simulation needs them soon, and the script should not run far ahead of it.
_CHUNK = 512


class TaskFeed:
    """What a running rank sends. It is the listener of the rank's recorder, and belongs to the script's main thread."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._thread = threading.get_ident()
        self._lock = threading.RLock()  # other threads of the script may print, and signals interrupt
        self._flushing = False
        self._untold: Item | None = None
        self._items: list[Item] = []
        self._numbers: dict[Hashable, int] = {}
        self._by_call: dict[Hashable, int] = {}
        self._step: RecordedStep | None = None
        self._positions: list[int] = []  # the numbers of the step's operators
        self._open_batch: int | None = None
        self._timing = False
        self._detached = False
        self._quiet = False
        self._sent_groups = 0
        self._fingerprint: list[Hashable] = []
        self.groups: ProcessGroups | None = None

    # ---- what the recorder tells ----------------------------------------------------------------------------------

    def operator(self, operator: RecordedOperator, step: RecordedStep) -> None:
        """Send an operator."""
        if step is not self._step:
            self._step, self._positions = step, []
        number = self._number(operator, step)
        self._positions.append(number)
        asked = operator.communication
        self._open_batch = None if asked is None else asked.batch
        if asked is None:
            self._fingerprint.append(number)
            self.send(number)
            return
        self._fingerprint.append((number, asked.kind, asked.group, asked.nbytes, asked.peer, asked.root))
        self._send_groups()
        self.send(Communicated(number, replace(asked, line=script_line()), operator.layer))

    def mark(self, mark: Mark) -> None:
        """Send a mark."""
        self._open_batch = None
        self._fingerprint.append((mark.kind, mark.stream))
        if self._timing and mark.kind == "record" and mark.stream is not None and mark.number is not None:
            self.send(TimedEvent(mark.stream, mark.number))
        else:
            self.send(mark)

    def _number(self, operator: RecordedOperator, step: RecordedStep) -> int:
        """Return the number of an operator; a new one is sent."""
        storages: dict[int, int] = {}
        roles: list[Any] = []  # of each tensor: its storage's category, and which of the call's storages it is
        for index in (*operator.inputs, *operator.outputs):
            storage = step.tensors[index].storage
            roles.append(storage.category or category_of(storage))
            roles.append(storages.setdefault(storage.number, len(storages)))
        forward = None if operator.forward is None else self._positions[operator.forward]
        call = (operator.call, operator.phase, operator.stream, forward, *roles)
        number = None if operator.call is None else self._by_call.get(call)
        if number is None:
            number = self._number_of(operator, step, roles, forward)
            if operator.call is not None:
                self._by_call[call] = number
        return number

    def _number_of(self, operator: RecordedOperator, step: RecordedStep, roles: list[Any], forward: int | None) -> int:
        """Return the number of an operator by its description; forms of tensors that differ in strides alone have one."""
        described: list[tuple[Any, ...]] = []
        for place, index in enumerate((*operator.inputs, *operator.outputs)):
            tensor = step.tensors[index]
            described.append((tensor.shape, tensor.dtype, *roles[2 * place : 2 * place + 2]))
        count = len(operator.inputs)
        inputs, outputs = tuple(described[:count]), tuple(described[count:])
        attributes = repr(operator.attributes) if operator.attributes else ""
        key = (operator.name, operator.phase, operator.stream, attributes, inputs, outputs, forward)
        number = self._numbers.get(key)
        if number is None:
            self._numbers[key] = number = len(self._numbers)
            tensors = [Tensor(place, *one) for place, one in enumerate((*inputs, *outputs))]
            self.send(
                NewOperator(
                    Operator(
                        number,
                        operator.name,
                        operator.phase,
                        "",
                        tuple(tensors[: len(inputs)]),
                        tuple(tensors[len(inputs) :]),
                        0.0,
                        forward=forward,
                        attributes=dict(operator.attributes),
                        stream=operator.stream,
                    )
                )
            )
        return number

    def _send_groups(self) -> None:
        """Send the process groups, where the script has made more of them."""
        if self.groups is None:
            return
        groups = self.groups.groups
        count = sum(map(len, groups.values()))
        if count != self._sent_groups:
            self._sent_groups = count
            self.send(Groups(groups))

    # ---- what the host does ----------------------------------------------------------------------------------------

    @contextmanager
    def timing(self) -> Iterator[None]:
        """Send the events that are recorded inside as ones whose times may be asked for."""
        self._timing = True
        try:
            yield
        finally:
            self._timing = False

    def work(self, seconds: float, line: str = "") -> None:
        """Say that the host is busy, or sleeps at a line of the script."""
        self.send(HostWork(seconds, line))

    def say(self, said: Said) -> None:
        """Send what the script printed, at once: the next launch may be long in coming."""
        self.send(said)
        self._flush_between_batches()

    def step_over(self) -> int:
        """Say that a step is over; return a fingerprint that is equal for steps of equal tasks."""
        found, self._fingerprint = hash(tuple(self._fingerprint)), []
        self.send(StepOver())
        self._flush_between_batches()
        return found

    def ask(self, question: Question) -> Any:
        """Ask the simulation, and wait for the answer."""
        self.send(question)
        self.flush()
        answer = self._connection.recv()
        self._quiet = isinstance(question, ReadClock)
        return answer

    def end(self, status: int) -> None:
        """Say that the script ended."""
        self.send(Ended(status))
        self.flush()

    # ---- sending ---------------------------------------------------------------------------------------------------

    @property
    def is_of_this_thread(self) -> bool:
        """Whether the script's main thread asks."""
        return threading.get_ident() == self._thread

    @property
    def is_quiet(self) -> bool:
        """Whether nothing happened since the clock was read."""
        return self._quiet

    @property
    def is_detached(self) -> bool:
        """Whether this is a process that the script forked."""
        return self._detached

    def detach(self) -> None:
        """Send nothing any more: this is a process that the script forked. It may print, and must not use the GPU."""
        self._detached = True
        self._thread = -1
        self._lock = threading.RLock()
        self._items = []

    def send(self, item: Item) -> None:
        """Send an item, at once or with those that come after it."""
        if self._detached:
            _in_a_fork(item)
            return
        with self._lock:
            self._items.append(item)
            self._quiet = False
        if len(self._items) >= _CHUNK:
            self._flush_between_batches()

    def _flush_between_batches(self) -> None:
        """Send what is left, unless the rest of a batch of sends and receives is to come, or another thread asks for it."""
        if self._open_batch is None and self.is_of_this_thread:
            self.flush()

    def tell(self, item: Item) -> None:
        """Send an item from a signal's handler, which may interrupt the sending of others: then after these."""
        if self._flushing:
            self._untold = item
            return
        self.send(item)
        self.flush()

    def flush(self) -> None:
        """Send what is left."""
        with self._lock:
            items, self._items = self._items, []
        if items:
            self._flushing = True
            self._connection.send(items)
            self._flushing = False
        if self._untold is not None:
            untold, self._untold = self._untold, None
            self.tell(untold)


def _in_a_fork(item: Item) -> None:
    """Do what an item says in a process that the script forked. Raises ``RuntimeError`` where that uses the GPU."""
    if isinstance(item, Said):
        os.write(1 if item.stream == "out" else 2, item.text)
    elif isinstance(item, (int, NewOperator, Communicated, Mark, TimedEvent)):
        raise RuntimeError(
            "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the 'spawn' "
            "start method"
        )
