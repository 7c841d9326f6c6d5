"""Small traces with storages, whose memory can be added up by hand."""

from __future__ import annotations

from dataclasses import replace

from triosim.trace import Category, Operator, Phase, Storage, Tensor, Trace

MIB = 2**20


class Step:
    """Writes down a step: operators, and in between what they take and give back; the clock counts both."""

    def __init__(self) -> None:
        self.operators: list[Operator] = []
        self.storages: dict[int, Storage] = {}
        self._clock = 0
        self._before = 0

    def found(self, nbytes: int, category: Category = "parameter", layer: str = "", **known: str) -> int:
        """Memory that was there before the step, the first first."""
        return self._storage(nbytes, category, layer, None, **known)

    def run(self, name: str, phase: Phase = "forward", layer: str = "", stream: str = "compute") -> None:
        """An operator begins."""
        tensor = Tensor(len(self.operators), (1,))
        number = len(self.operators)
        self.operators.append(Operator(number, name, phase, layer, (tensor,), (tensor,), 0.0, stream=stream))

    def take(self, nbytes: int, category: Category = "activation", layer: str = "", **known: str) -> int:
        """The operator that runs takes memory."""
        self._clock += 1
        return self._storage(nbytes, category, layer, self._clock, **known)

    def give(self, *numbers: int) -> None:
        """The operator that runs gives memory back."""
        for number in numbers:
            self._clock += 1
            last = len(self.operators) - 1
            self.storages[number] = replace(self.storages[number], died=self._clock, last_operator=last)

    def trace(self, gpu: str = "unknown") -> Trace:
        """The step as a trace."""
        found = [one for one in self.storages.values() if one.born < 0]
        storages = [replace(one, born=one.born - len(found)) if one.born < 0 else one for one in self.storages.values()]
        return Trace(tuple(self.operators), 1, "hand-made", gpu, storages=tuple(storages))

    def _storage(self, nbytes: int, category: Category, layer: str, clock: int | None, stream: str = "compute") -> int:
        number = len(self.storages)
        if clock is None:
            self._before += 1
        born = self._before - 10_000 if clock is None else clock
        operator = -1 if clock is None else len(self.operators) - 1
        self.storages[number] = Storage(number, nbytes, category, layer, born, None, operator, None, stream)
        return number


def training_step(buffer: int = 0) -> Step:
    """A layer of 4 MiB trained with one state a parameter: what it found is what it leaves."""
    step = Step()
    step.found(4 * MIB, "parameter", "fc")
    if buffer:
        step.found(buffer, "buffer", "fc")
    step.found(4 * MIB, "optimizer_state", "fc")
    old = step.found(4 * MIB, "gradient", "fc")
    step.run("aten::addmm", "forward", "fc")
    activation = step.take(8 * MIB, "activation", "fc")
    step.give(old)  # zero_grad()
    step.run("aten::mm", "backward", "fc")
    step.take(4 * MIB, "gradient", "fc")
    step.give(activation)
    step.run("aten::_foreach_addcdiv_", "optimizer")
    temporary = step.take(4 * MIB, "temporary")
    step.give(temporary)
    return step
