"""Runs a user's training script for a capture, unchanged and as Python would, until the wanted steps are over.

The script is ``__main__``, with its own ``sys.argv`` and its folder first on ``sys.path``. A ``BaseException`` stops it when
the last step is over. An error of the script is shown with Python's traceback, without the frames of triosim.
"""

from __future__ import annotations

import io
import os
import re
import runpy
import sys
import traceback
import types
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from triosim.errors import CaptureError, OptionError, ScriptError
from triosim.extrapolators.expert.expert_loads import LoadDistribution
from triosim.tracer.steps import Observer, StepCounter, StepObservations, module_calls, optimizer_steps

if TYPE_CHECKING:
    import torch

#: What PyTorch raises for an operator that it cannot run on tensors without contents.
_NESTED = ("nested tensors are not captured without a GPU", "pad them, or capture on a GPU")
_SPARSE = ("sparse tensors of a GPU are not captured without one", "use dense ones, or capture on a GPU")
_UNKNOWN_WITHOUT_A_GPU = ("UnsupportedOperatorException", "DynamicOutputShapeException", "DataDependentOutputException")
_OURS = str(Path(__file__).resolve().parent) + os.sep


@dataclass(frozen=True, slots=True)
class Script:
    """A script, or with ``module`` the name of a module, and how its launcher calls it.

    ``local_option`` is by what option, before its ``arguments``, it is told which of the machine's ranks it is; ``environment``
    is what the launcher sets beside torchrun's. ``stand_ins`` are packages that are stood in for where they are not installed;
    ``routing`` is how the choice of routers is drawn.
    """

    path: str
    arguments: tuple[str, ...] = ()
    module: bool = False
    local_option: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    stand_ins: tuple[str, ...] = ()
    routing: LoadDistribution | None = None

    def arguments_of(self, local_rank: int) -> tuple[str, ...]:
        """Return all arguments of one of the machine's ranks."""
        return (f"{self.local_option}={local_rank}", *self.arguments) if self.local_option else self.arguments


class EnoughSteps(BaseException):
    """Raised in the script when the wanted steps are over."""


def run_script(
    path: str | os.PathLike[str],
    arguments: Sequence[str],
    observer: Observer,
    *,
    skip: int = 0,
    steps: int = 1,
    least: int | None = None,
    batch_size: int | None = None,
    module: bool = False,
) -> StepObservations:
    """Run a script as ``__main__`` until ``steps`` steps after the first ``skip`` are over, and tell the observer of each.

    With ``module`` the path is the name of one. With ``least`` a script may also end by itself after that many. Where steps
    are skipped, so is one more while a further optimizer runs for the first time. ``batch_size`` is, where it is given, that
    of each step. Returns what was observed of the script's model and optimizers up to the end of step 0. Raises
    ``OptionError`` where there is no such file, and ``CaptureError`` when the script raises (its traceback is printed), does
    what cannot be captured, exits, or ends too early.
    """
    if not module:
        check_script(path)
    observed = StepObservations(batch_size=batch_size)
    counter = _ScriptSteps(observer, observed, skip, steps)
    needed = steps if least is None else least
    with optimizer_steps(counter.over, observed), counter.calls:
        counter.calls.enter_context(module_calls(observed))
        counter.begin()
        try:
            execute(path, arguments, module=module)
        except EnoughSteps:
            pass
        except SystemExit as left:
            if counter.number < (steps if left.code else needed):
                raise counter.no_step(path, _exit_reason(left), needed) from None
        except Exception as error:
            if counter.number < steps:
                if (refused := _capture_error(path, error)) is not None:
                    raise refused from None
                show_error(error)
                raise counter.no_step(path, f"the script raised {type(error).__name__}", steps) from None
    if counter.number < needed:
        raise counter.no_step(path, "the script ended", needed)
    return observed


class _ScriptSteps(StepCounter):
    """The counter of a script's steps, which stops the script after the last one.

    Calls of modules are observed (``calls``) until step 0 is over, because that costs each call a little.
    """

    def __init__(self, observer: Observer, observed: StepObservations, skip: int, steps: int) -> None:
        super().__init__(observer, observed, skip, steps)
        self.calls = ExitStack()

    def begin(self) -> None:
        """Begin a step."""
        if self.number > 0:
            self.calls.close()
        super().begin()

    def over(self, optimizer: torch.optim.Optimizer) -> None:
        """End a step. Raises ``EnoughSteps`` after the last one."""
        super().over(optimizer)
        if self.number >= self.steps:
            raise EnoughSteps

    def no_step(self, path: str | os.PathLike[str], why: str, needed: int) -> CaptureError:
        """Return the error of a script with too few steps; it has a remedy unless the script itself failed."""
        if (count := self.number + self.skip) > 0:
            what = f"the capture has no step: {why} after {count} of {self.skip + needed} steps"
            fix = "let it train longer, or ask for fewer with --skip and --steps"
        else:
            what = f"the capture has no step: {why} before an optimizer's step() returned"
            fix = "a step ends with optimizer.step(), of an optimizer that derives from torch.optim.Optimizer"
        if why.endswith(("ended", "status 0")):
            return CaptureError(what, where=os.fspath(path), fix=fix)
        return ScriptError(what, where=os.fspath(path))


def check_script(path: str | os.PathLike[str]) -> None:
    """Raise ``OptionError`` when there is no script at a path."""
    if not Path(path).exists():
        raise OptionError("there is no such script", where=str(path), fix="name a Python file")
    if Path(path).is_dir():
        raise OptionError("is a folder, not a script", where=str(path), fix="name a Python file")
    if Path(path).is_char_device() or Path(path).is_block_device():  # /dev/zero has no end
        raise OptionError("is a device, not a script", where=str(path), fix="name a Python file")


def execute(path: str | os.PathLike[str], arguments: Sequence[str], *, module: bool = False) -> None:
    """Run a script in this process as ``python script.py arguments`` does, or a ``module`` as ``python -m`` does."""
    if module:
        _execute_module(os.fspath(path), arguments)
        return
    with io.open_code(os.path.abspath(path)) as file:
        source = file.read()
    with _as_main(path, arguments) as main:
        exec(compile(source, os.fspath(path), "exec", dont_inherit=True), main.__dict__)


def _execute_module(name: str, arguments: Sequence[str]) -> None:
    before = sys.argv, sys.path[:]
    sys.argv = [name, *arguments]
    sys.path[:1] = [os.getcwd()]
    try:
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    finally:
        sys.argv, sys.path[:] = before


@contextmanager
def _as_main(path: str | os.PathLike[str], arguments: Sequence[str]) -> Iterator[types.ModuleType]:
    """Make the script's module ``__main__``, as ``python script.py`` does."""
    main = types.ModuleType("__main__")
    main.__file__ = os.fspath(path)
    main.__dict__["__builtins__"] = __builtins__
    before = sys.modules["__main__"], sys.argv, sys.path[:]
    sys.modules["__main__"] = main
    sys.argv = [os.fspath(path), *arguments]
    sys.path[:1] = [os.path.dirname(os.path.realpath(path))]
    try:
        yield main
    finally:
        sys.modules["__main__"], sys.argv, sys.path[:] = before


def _capture_error(path: str | os.PathLike[str], error: Exception) -> CaptureError | None:
    """Return the error for what a capture cannot do, in one line; None where the error is the script's own."""
    where = f"{os.fspath(path)}: line {_line(path, error)}"
    if isinstance(error, CaptureError):
        return CaptureError(error.what, where=error.where or where, fix=error.fix)
    found = uncaptured(error) or _no_device(error)
    return None if found is None else CaptureError(found[0], where=where, fix=found[1])


def uncaptured(error: BaseException) -> tuple[str, str] | None:
    """Return what is wrong and what to do, where PyTorch cannot run an operator on tensors without contents."""
    if not isinstance(error, (RuntimeError, AssertionError)):
        return None
    if type(error).__name__ in _UNKNOWN_WITHOUT_A_GPU and (operator := getattr(error, "func", None)) is not None:
        name = getattr(getattr(operator, "_schema", None), "name", operator)
        if "nested_tensor" in name:
            return _NESTED
        if "sparse" in name or name == "aten::_to_copy":  # it copies every other tensor
            return _SPARSE
        return (
            f"without a GPU the shape of what {name} returns is not known",
            "tell PyTorch with torch.library.register_fake, or capture on a GPU",
        )
    if "shape_env must not be None" in str(error):  # PyTorch's nested tensors count on symbols for their lengths
        return _NESTED
    if re.search("SparseTensorImpl|strided, got torch.sparse", str(error)):
        return _SPARSE
    return None


def _no_device(error: BaseException) -> tuple[str, str] | None:
    """Return what is wrong and what to do, where a script asks for a GPU that this machine lacks."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(error, (RuntimeError, AssertionError)):
        return None
    if re.search("CUDA|NVIDIA|support for cuda", str(error)) and not torch.cuda.is_available():
        return (
            "the script asks for a GPU, and there is none here",
            "capture it without one: triosim capture --fake --gpu H100",
        )
    return None


def _line(path: str | os.PathLike[str], error: BaseException) -> int:
    """Return the innermost line of the script in an error's traceback."""
    lines = [one.tb_lineno for one in _entries(error) if one.tb_frame.f_code.co_filename == os.fspath(path)]
    return lines[-1] if lines else 1


def _exit_reason(left: SystemExit) -> str:
    if left.code is None or isinstance(left.code, int):
        return f"the script exited with status {left.code or 0}"
    print(left.code, file=sys.stderr)
    return "the script exited"


def show_error(error: BaseException, ours: tuple[str, ...] = ()) -> None:
    """Print a traceback as Python does, without the frames of the tracer and of files whose paths begin with ``ours``."""
    if not os.environ.get("TRIOSIM_DEBUG"):
        _forget_frames(error, (_OURS, "<frozen runpy>", *ours), set())
    traceback.print_exception(error)


def _forget_frames(error: BaseException | None, ours: tuple[str, ...], known: set[int]) -> None:
    if error is None or id(error) in known:  # PyTorch's are not all hashable
        return
    known.add(id(error))
    kept = [entry for entry in _entries(error) if not entry.tb_frame.f_code.co_filename.startswith(ours)]
    linked: types.TracebackType | None = None
    for entry in reversed(kept):
        linked = types.TracebackType(linked, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    error.__traceback__ = linked
    _forget_frames(error.__cause__, ours, known)
    _forget_frames(error.__context__, ours, known)


def _entries(error: BaseException) -> Iterator[types.TracebackType]:
    entry = error.__traceback__
    while entry is not None:
        yield entry
        entry = entry.tb_next
