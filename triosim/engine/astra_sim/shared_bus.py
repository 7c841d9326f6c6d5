"""The LogGP model of a rank's bus (``model-shared-bus``): two sides that send in turn, and local memory behind one.

Latency L, overhead o, gap g between messages and gap G per byte (Alexandrov et al. 1995), as ASTRA-sim's ``LogGP.cc`` has it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from triosim.chakra.inputs.system_file import SharedBus
from triosim.engine.astra_sim.clock import Timers

_MEMORY_GAP_PER_BYTE = 0.0038  # ns
_MOST_IN_A_ROW = 8
_PROCESSING = 50  # ns, beside the reduction delay of every 100 bytes


class _State(Enum):
    FREE = 0
    SENDING = 1
    RECEIVING = 2


@dataclass(slots=True)
class Request:
    """A message that moves over a bus: what is called when it has, whether it is reduced, and whether it goes back after."""

    size: int
    call: Callable[[Any], None]
    argument: Any
    processed: bool = False
    sent_back: bool = False


class BusSide:
    """One side of a bus; ``memory`` is the bus to local memory behind it, which every message crosses first and last."""

    partner: BusSide

    def __init__(self, timers: Timers, bus: SharedBus, memory: BusPair | None = None) -> None:
        self._timers, self._bus, self._memory = timers, bus, memory
        self._state = self._before = _State.FREE
        self._last = self._in_a_row = 0
        self._sends: deque[Request] = deque()
        self._receives: deque[Request] = deque()
        self._processing: deque[Request] = deque()
        self._processes = False

    def request(self, request: Request) -> None:
        """Take a message that is to go to the other side."""
        if self._memory is not None:
            self._memory.nic.request(Request(request.size, self._send, request))
            return
        self._sends.append(request)
        self._go_on()

    def _send(self, request: Request) -> None:
        self._sends.append(request)
        self._go_on()

    def _go_on(self) -> None:
        """Send the next message, if the bus is free; after many in a row the other side has its turn."""
        if self._state is not _State.FREE or not self._sends:
            return
        if self._in_a_row > _MOST_IN_A_ROW and self.partner._sends and self.partner._in_a_row <= _MOST_IN_A_ROW:
            self.partner._go_on()
            return
        offset, bus = self._offset(), self._bus
        request = self._sends[0]
        self.partner._expect(request, offset)
        self._sends.popleft()
        self._state = _State.SENDING
        self._timers.after(int(offset + bus.gap_per_byte * (request.size - 1)), self._sent, None)

    def _offset(self) -> int:
        since = self._timers.clock.now - self._last
        if self._before is _State.SENDING and self._bus.overhead + since <= self._bus.gap:
            return self._bus.gap - since
        return self._bus.overhead

    def _expect(self, request: Request, offset: int) -> None:
        self._receives.append(request)
        self._before, self._state = self._state, _State.RECEIVING
        bus = self._bus
        delay = offset + (request.size - 1) * bus.gap_per_byte + bus.latency + bus.overhead
        self._timers.after(int(delay), self._received, None)
        self._in_a_row = 0

    def _sent(self, _: None) -> None:
        self._last = self._timers.clock.now
        self._before, self._state = self._state, _State.FREE
        self._in_a_row += 1
        self._go_on()

    def _received(self, _: None) -> None:
        self._last = self._timers.clock.now
        self._before = self._state
        if len(self._receives) < 2:
            self._state = _State.FREE
        request = self._receives.popleft()
        if request.processed:
            request = replace(request, processed=False)
            if self._memory is not None:
                self._memory.npu.request(Request(request.size, self._process, request, sent_back=True))
            else:
                self._processing.append(request)
            self._start_processing()
        else:
            self._pass_on(request)
        self._go_on()

    def _pass_on(self, request: Request) -> None:
        """Send a message back, or hand it over; by way of local memory where there is one."""
        back = request.sent_back
        request = replace(request, sent_back=False)
        if self._memory is not None:
            self._memory.npu.request(
                Request(request.size, self._send if back else self._retire, request, sent_back=back)
            )
        elif back:
            self._sends.append(request)
        else:
            request.call(request.argument)

    def _process(self, request: Request) -> None:
        self._processing.append(request)
        self._start_processing()
        self._go_on()

    def _start_processing(self) -> None:
        if self._processes or not self._processing:
            return
        self._processes = True
        size = self._processing[0].size
        self._timers.after(size // 100 * self._bus.reduction_delay + _PROCESSING, self._processed, None)

    def _processed(self, _: None) -> None:
        self._processes = False
        self._pass_on(self._processing.popleft())
        self._start_processing()
        self._go_on()

    def _retire(self, request: Request) -> None:
        request.call(request.argument)
        self._go_on()


@dataclass(frozen=True, slots=True)
class BusPair:
    """The two sides of a bus."""

    npu: BusSide
    nic: BusSide

    @classmethod
    def of_npu(cls, timers: Timers, bus: SharedBus) -> BusPair:
        """Return the bus between an NPU, with its local memory, and its NIC."""
        memory_bus = replace(bus, gap_per_byte=_MEMORY_GAP_PER_BYTE)
        memory = cls._joined(BusSide(timers, memory_bus), BusSide(timers, memory_bus))
        return cls._joined(BusSide(timers, bus, memory), BusSide(timers, bus))

    @classmethod
    def _joined(cls, npu: BusSide, nic: BusSide) -> BusPair:
        npu.partner, nic.partner = nic, npu
        return cls(npu, nic)
