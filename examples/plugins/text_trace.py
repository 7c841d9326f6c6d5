"""A trace format: a line an operator, "layer, forward us, backward us, activation MB, parameter MB", after a title.

    # my-net batch 32
    stem, 120, 240, 51.4, 0.04

It is used by naming the file, ``triosim.load_trace(path, format=plugins.load("trace_formats", "text_trace.py"))``, or, from an
installed package, without a word: an entry point in the group ``triosim.trace_formats``.
"""

from __future__ import annotations

from pathlib import Path

from triosim import Operator, Tensor, Trace
from triosim.errors import TraceError

NAME = "text"


def recognises(path: Path) -> bool:
    return path.is_file() and path.read_bytes()[:2] == b"# "


def read(path: Path) -> Trace:
    title, *lines = path.read_text().splitlines()
    model, _, batch = title.removeprefix("# ").rpartition(" batch ")
    if not batch.isdigit():
        raise TraceError("no batch size", where=f"{path}:1", fix="write '# NAME batch SIZE'")
    layers = []
    x = Tensor(0, (int(batch), 1), category="input", storage=0)
    for number, line in enumerate(lines, 2):
        try:
            name, *figures = (word.strip() for word in line.split(","))
            forward, backward, activation, parameter = map(float, figures)
        except ValueError:
            raise TraceError(f"cannot read '{line}'", where=f"{path}:{number}", fix="write five fields") from None
        y = Tensor(3 * number, (int(batch), round(activation * 1e6 / 4 / int(batch))), storage=3 * number)
        w = Tensor(3 * number + 1, (round(parameter * 1e6 / 4),), category="parameter", storage=3 * number + 1)
        layers.append((number, name, x, w, y, forward * 1e-6, backward * 1e-6))
        x = y
    operators = [Operator(n, "layer", "forward", name, (x, w), (y,), t) for n, name, x, w, y, t, _ in layers]
    for n, name, x, w, y, _, t in reversed(layers):
        gradient = Tensor(3 * n + 2, w.shape, category="gradient", storage=3 * n + 2, parameter=w.id)
        operators.append(Operator(1000 + n, "layer", "backward", name, (y, x, w), (gradient,), t, forward=n))
    return Trace(tuple(operators), int(batch), model=model, source=str(path))
