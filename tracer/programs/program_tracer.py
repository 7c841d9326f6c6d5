"""Runs a program over an overlay: it is stopped at each call of the system that names a path, which then names another one.

A filter (seccomp) stops the program, and all that it starts, at those calls alone; a process of its own watches it by
``ptrace`` and changes the calls (``traced_calls``). The program has the process that the script started. Where it cannot be
watched, it runs as it is. (``man 2 ptrace``, ``man 2 seccomp``)
"""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import struct
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress

from triosim.tracer.patches import Patches
from triosim.tracer.programs.traced_calls import CALLS, PathCalls
from triosim.tracer.surroundings import file_functions
from triosim.tracer.surroundings.file_overlay import FileOverlay

_CONTINUE, _GET_REGISTERS, _SET_REGISTERS, _SEIZE, _LISTEN = 7, 12, 13, 0x4206, 0x4208
#: What stops a program: what it starts (fork, vfork, clone), the filter; and that it ends with its tracer.
_OPTIONS = 0x2 | 0x4 | 0x8 | 0x80 | 0x100000
_AT_FILTER, _AT_STOP = 7, 128
_WAIT_ALL = 0x40000000
_SET_PTRACER, _NO_NEW_PRIVILEGES, _SET_SECCOMP, _FILTER = 0x59616D61, 38, 22, 2
_X86_64 = 0xC000003E
_ALLOW, _TRACE = 0x7FFF0000, 0x7FF00000
#: Bytes below the stack that a function may use without saying so (System V ABI, AMD64), with room for more.
_BELOW_STACK = 1024
_PAGE = 4096
_FIRST = ("r15", "r14", "r13", "r12", "rbp", "rbx", "r11", "r10", "r9", "r8", "rax", "rcx", "rdx", "rsi", "rdi")
_LAST = ("orig_rax", "rip", "cs", "eflags", "rsp", "ss", "fs_base", "gs_base", "ds", "es", "fs", "gs")
_ARGUMENTS = ("rdi", "rsi", "rdx", "r10", "r8", "r9")


def is_able() -> bool:
    """Whether programs of this system can be run so: Linux on x86-64."""
    return sys.platform == "linux" and platform.machine() == "x86_64" and struct.calcsize("P") == 8


_UNWATCHED = (
    "triosim: note: this system lets no program be watched (ptrace): it may write below --files and the temporary folder "
    "(TMPDIR) alone"
)


def main(folders: str, temporary: str, executable: str, arguments: list[str]) -> None:
    """Become a program, with what watches it beside. ``folders`` are the overlay's, ``temporary`` one for listings."""
    overlay, *shared = folders.split(os.pathsep)
    if not (is_able() and _is_watched(overlay, tuple(shared), temporary) and _stop_at_calls(CALLS)):
        print(_UNWATCHED, file=sys.stderr, flush=True)
    os.execvp(executable, arguments)


def _is_watched(overlay: str, shared: tuple[str, ...], temporary: str) -> bool:
    """Start a process that watches this one; return whether it can."""
    program = os.getpid()
    ready, says = os.pipe()
    ctypes.CDLL(None).prctl(_SET_PTRACER, ctypes.c_ulong(-1 & (1 << 64) - 1), 0, 0, 0)
    between = os.fork()
    if not between:
        if not os.fork():
            _watch(program, FileOverlay(overlay, shared), temporary, says)
        os._exit(0)
    os.close(says)
    os.waitpid(between, 0)  # so that the watching one is no child of the program
    answer = os.read(ready, 1)
    os.close(ready)
    return answer == b"1"


def _watch(program: int, files: FileOverlay, temporary: str, says: int) -> None:
    """Watch a program and all that it starts until the last one ends; then end."""
    status = 1
    try:
        seized = _ptrace(_SEIZE, program, 0, _OPTIONS) == 0
        os.write(says, b"1" if seized else b"0")
        if seized:
            _detach()
            with Patches() as patches:
                file_functions.install(patches, files)
                calls = PathCalls(files, temporary)
                _serve(calls)
                calls.close()
            status = 0
    finally:
        os._exit(status)


def _detach() -> None:
    """Keep no files of the program open, and no signals of its terminal."""
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for one in range(3):
        os.dup2(nothing, one)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))


def _serve(calls: PathCalls) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, _WAIT_ALL)
        except ChildProcessError:
            return
        if os.WIFSTOPPED(status):
            _go_on(pid, status, calls)


def _go_on(pid: int, status: int, calls: PathCalls) -> None:
    """Let a stopped program go on."""
    event, number = status >> 16, os.WSTOPSIG(status)
    if event == _AT_FILTER:
        with suppress(ProcessLookupError):  # it was killed meanwhile
            stopped = _Stopped(pid)
            with suppress(OSError, ValueError, OverflowError):  # it has ended, or gave no text: the system answers it
                calls.handle(stopped)
            stopped.write()
        _ptrace(_CONTINUE, pid, 0, 0)
    elif event == _AT_STOP and number in (signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU):
        _ptrace(_LISTEN, pid, 0, 0)
    else:
        _ptrace(_CONTINUE, pid, 0, 0 if event else number)


class _Registers(ctypes.Structure):
    """The registers of a program on x86-64 (``struct user_regs_struct``)."""

    _fields_ = [(name, ctypes.c_ulonglong) for name in (*_FIRST, *_LAST)]


class _Stopped:
    """A program that is stopped at a call of the system (``traced_calls.StoppedCall``)."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._registers = _Registers()
        self._is_changed = False
        if _ptrace(_GET_REGISTERS, pid, 0, ctypes.addressof(self._registers)):
            raise ProcessLookupError(pid)
        self.number = int(self._registers.orig_rax)

    def argument(self, position: int) -> int:
        """Return an argument."""
        return int(getattr(self._registers, _ARGUMENTS[position]))

    def text(self, address: int) -> str:
        """Return the text at an address."""
        found = b""
        with open(f"/proc/{self.pid}/mem", "rb", buffering=0) as memory:
            while b"\0" not in found and len(found) < _PAGE:
                memory.seek(address + len(found))
                found += memory.read(_PAGE - (address + len(found)) % _PAGE)  # the next page need not be there
        return os.fsdecode(found.partition(b"\0")[0])

    def word(self, address: int) -> int:
        """Return the number of 64 bits at an address."""
        with open(f"/proc/{self.pid}/mem", "rb", buffering=0) as memory:
            memory.seek(address)
            return int.from_bytes(memory.read(8), sys.byteorder)

    def replace(self, texts: Mapping[int, str]) -> None:
        """Give the call other texts, which are written below the program's stack."""
        address = self._registers.rsp - _BELOW_STACK
        with open(f"/proc/{self.pid}/mem", "r+b", buffering=0) as memory:
            for position, text in texts.items():
                written = os.fsencode(text) + b"\0"
                address = (address - len(written)) & ~15
                memory.seek(address)
                memory.write(written)
                setattr(self._registers, _ARGUMENTS[position], address)
        self._is_changed = True

    def put(self, address: int, text: str) -> None:
        """Write a text into the program's memory."""
        with open(f"/proc/{self.pid}/mem", "r+b", buffering=0) as memory:
            memory.seek(address)
            memory.write(os.fsencode(text) + b"\0")

    def answer(self, value: int) -> None:
        """Give the program an answer: a call of no number is not made, and returns what stands there."""
        self._registers.orig_rax = (1 << 64) - 1
        self._registers.rax = value & (1 << 64) - 1
        self._is_changed = True

    def write(self) -> None:
        """Write the registers back."""
        if self._is_changed:
            _ptrace(_SET_REGISTERS, self.pid, 0, ctypes.addressof(self._registers))


def _stop_at_calls(numbers: Iterable[int]) -> bool:
    """Stop this process, and what it becomes and starts, at calls of these numbers, for ever; return whether that works."""
    wanted = sorted(numbers)
    count = len(wanted)
    code = [_instruction(0x20, 4), _instruction(0x15, _X86_64, 1, 0), _instruction(0x06, _ALLOW), _instruction(0x20, 0)]
    code += [_instruction(0x15, number, count - place, 0) for place, number in enumerate(wanted)]
    code += [_instruction(0x06, _ALLOW), _instruction(0x06, _TRACE)]
    program = ctypes.create_string_buffer(b"".join(code))
    length_and_code = struct.pack("HxxxxxxP", len(code), ctypes.addressof(program))
    prctl = ctypes.CDLL(None).prctl
    return prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) == 0 and prctl(_SET_SECCOMP, _FILTER, length_and_code, 0, 0) == 0


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    """Return an instruction of the filter's (BPF): 0x20 loads, 0x15 compares and jumps, 0x06 returns."""
    return struct.pack("HBBI", code, if_true, if_false, value)


def _ptrace(request: int, pid: int, address: int, data: int) -> int:
    call = ctypes.CDLL(None, use_errno=True).ptrace
    call.restype = ctypes.c_long
    return int(call(ctypes.c_long(request), ctypes.c_long(pid), ctypes.c_void_p(address), ctypes.c_void_p(data)))
