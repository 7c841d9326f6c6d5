"""Run the configurations and compare all that comes out with what was frozen: ``python -m tests.golden.compare``.

It is run from the root of a worktree, whose triosim it compares: with ``--freeze`` before a change, and without after it. The
store is ``.golden``, which git ignores. Its ``texts`` hold what people read, as plain text: exit statuses, both streams and
notes; its ``figures`` hold the results and other files as data, compressed, or hashes of them where they are large.
"""

from __future__ import annotations

import argparse
import difflib
import gzip
import hashlib
import io
import json
import multiprocessing
import os
import pickle
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from tests.golden.configurations import ALL, Configuration

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
#: Placeholders, by what they are called in a scratch folder, and where that leads.
FOLDERS = {
    "traces": ROOT / "examples" / "traces",
    "topologies": ROOT / "examples" / "topologies",
    "plugins": ROOT / "examples" / "plugins",
    "data": HERE / "data",
}
#: What is stored of a configuration is no larger than this, in bytes; larger files are hashed.
MOST = 50_000
#: Keys of JSON under which there is text for people; they are compared as such.
PROSE = ("notes", "reason", "why", "error", "fix")
RUN = (
    "import runpy, sys; sys.path[:] = {path}; sys.argv[0] = 'triosim'; runpy.run_module('triosim', run_name='__main__')"
)


@dataclass
class Outcome:
    """What a configuration gave: its text, and data by the name of a file. ``wrong`` is why it cannot be frozen."""

    name: str
    text: str = ""
    figures: dict[str, Any] = field(default_factory=dict)
    wrong: str = ""
    seconds: float = 0.0


# Running


def run_one(number: int) -> Outcome:
    """Run a configuration in this process, which does nothing else before or after."""
    configuration = ALL[number]
    started = time.perf_counter()
    scratch = Path(tempfile.mkdtemp(prefix="golden-"))
    try:
        outcome = _run(configuration, scratch)
    except BaseException:
        outcome = Outcome(configuration.name, wrong=traceback.format_exc())
    finally:
        os.chdir(ROOT)
        shutil.rmtree(scratch, ignore_errors=True)
    outcome.seconds = time.perf_counter() - started
    return outcome


def _run(configuration: Configuration, scratch: Path) -> Outcome:
    work = scratch / "work"
    work.mkdir()
    for name, target in FOLDERS.items():
        (work / name).symlink_to(target)
    (work / "tmp").mkdir()
    os.chdir(work)
    outcome = Outcome(configuration.name)
    parts: list[str] = []
    status = 0
    for number, command in enumerate(configuration.commands):
        arguments = [one.format(tmp="tmp", **{name: name for name in FOLDERS}) for one in command]
        last = number == len(configuration.commands) - 1
        how = configuration.how if last else "here"
        status, out, err = _in_process(arguments, scratch) if how == "here" else _in_its_own(arguments, how)
        if last and (printed := _as_json(out)) is not None:
            outcome.figures["stdout"] = {"json": printed}
            out = "(JSON)\n"
        parts.append(f"$ triosim {shlex.join(command)}\nexit status {status}\n")
        parts += [f"--- standard {name}\n{text}" for name, text in (("error", err), ("output", out)) if text]
        if "internal error" in err or "Traceback" in err:
            outcome.wrong = f"an internal error: {err.strip()}"
        elif not last and status != 0:
            outcome.wrong = f"exit status {status} of {shlex.join(command)}: {err.strip()}"
    if status != configuration.status and not outcome.wrong:
        outcome.wrong = f"exit status {status} where {configuration.status} was to be: {err.strip()}"
    for path in sorted((work / "tmp").rglob("*")):
        if path.is_file():
            outcome.figures[str(path.relative_to(work / "tmp"))] = _content(path)
    for name, content in outcome.figures.items():
        if isinstance(content.get("json"), dict):
            content["json"].pop("inputs", None)
            prose = list(_prose(content["json"], ""))
            parts += [f"--- {name}: {where}\n" + "".join(f"- {line}\n" for line in lines) for where, lines in prose]
    if foreign := _foreign():
        outcome.wrong = foreign
    places = {str(work): "{scratch}", str(scratch): "{scratch}", str(HERE): "{golden}", str(ROOT): "{root}"}
    outcome.text = _placeless("".join(part if part.endswith("\n") else f"{part}\n" for part in parts), places)
    outcome.figures = json.loads(_placeless(json.dumps(outcome.figures, ensure_ascii=False), places))
    return outcome


def _in_process(arguments: list[str], scratch: Path) -> tuple[int, str, str]:
    from triosim.cli import run

    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        opened = os.open(scratch / name, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        os.dup2(opened, descriptor)
        os.close(opened)
        setattr(sys, name, io.TextIOWrapper(open(descriptor, "wb", closefd=False), encoding="utf-8"))  # noqa: SIM115
    try:
        status = run(arguments)
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    out, err = (scratch.joinpath(name).read_text(encoding="utf-8") for name in ("stdout", "stderr"))
    return status, out, err


def _in_its_own(arguments: list[str], how: str) -> tuple[int, str, str]:
    command = [sys.executable, "-c", RUN.format(path=[*dict.fromkeys([str(ROOT), *sys.path])]), *arguments]
    if how == "pipe":
        reader, output = os.pipe()
        os.close(reader)  # gone before the first line, as `| head` is after it
    else:
        output = os.open("/dev/full" if how == "full" else "/dev/null", os.O_WRONLY)
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.PIPE,
        text=True,
        restore_signals=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL) and None,
    )
    os.close(output)
    if how == "interrupt":
        while _busy(process.pid) < 3.0 and process.poll() is None:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=300)
    return process.returncode, "", err


def _busy(process: int) -> float:
    """Return the seconds of a processor that a process has had."""
    parts = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(parts[11]) + int(parts[12])) / os.sysconf("SC_CLK_TCK")


def _content(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    if path.suffix == ".gz":
        data = gzip.decompress(data)
    if path.suffix == ".pickle":
        data = repr(pickle.loads(data)).encode()
    text = data.decode("utf-8")
    content = _as_json(text)
    return {"lines": text.splitlines()} if content is None else {"json": content}


def _as_json(text: str) -> Any:
    """Return the object or list that a text is as JSON, or None."""
    try:
        return json.loads(text) if text.lstrip()[:1] in ("{", "[") else None
    except ValueError:
        return None


def _prose(content: Any, where: str) -> Iterator[tuple[str, list[str]]]:
    """Take what is for people out of JSON; yield where it was and what it was."""
    if isinstance(content, dict):
        for key in [*content]:
            place = f"{where}.{key}" if where else key
            if key in PROSE and (isinstance(content[key], str) or _texts(content[key])):
                found = content.pop(key)
                if found:
                    yield place, [found] if isinstance(found, str) else found
            else:
                yield from _prose(content[key], place)
    elif isinstance(content, list):
        for number, one in enumerate(content):
            yield from _prose(one, f"{where}[{number}]")


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _placeless(text: str, places: dict[str, str]) -> str:
    for place, name in places.items():
        text = text.replace(place, name)
    return text


def _foreign() -> str:
    """Return which module of triosim is not that of this worktree."""
    for name, module in sorted(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if name.partition(".")[0] == "triosim" and file is not None and not Path(file).resolve().is_relative_to(ROOT):
            return f"{name} is that of {file}, not of {ROOT}; install this worktree in editable mode"
    return ""


# Storing and comparing


def _packed(figures: dict[str, Any]) -> bytes:
    """Return what is stored: hashes in the place of the largest files, so that it is small enough."""
    kept = dict(figures)
    while True:
        data = gzip.compress(_dumped(kept), 9, mtime=0)
        whole = [name for name in kept if "sha256" not in kept[name]]
        if len(data) <= MOST or not whole:
            return data
        largest = max(whole, key=lambda name: len(_dumped(kept[name])))
        kept[largest] = _hashed(kept[largest])


def _hashed(content: Any) -> dict[str, Any]:
    data = _dumped(content)
    return {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}


def _dumped(content: Any) -> bytes:
    return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()


def _difference(old: Any, new: Any, where: str) -> str | None:
    """Return the first difference of two contents of JSON files: its path, the old and the new value."""
    if type(old) is not type(new):
        return f"{where}: {_short(old)} became {_short(new)}"
    if isinstance(old, dict):
        gone, come = [key for key in old if key not in new], [key for key in new if key not in old]
        if gone or come:
            return f"{where}: keys that are gone: {gone}; that are new: {come}"
        if [*old] != [*new]:
            return f"{where}: the keys are in another order: {[*old]} became {[*new]}"
        pairs = [(old[key], new[key], f"{where}.{key}") for key in old]
    elif isinstance(old, list):
        pairs = [(*both, f"{where}[{number}]") for number, both in enumerate(zip(old, new, strict=False))]
    elif isinstance(old, float):
        if repr(old) == repr(new):
            return None
        return f"{where}: {old!r} became {new!r}" + (f" (by {new / old - 1:+.3g} of it)" if old else "")
    else:
        return None if old == new else f"{where}: {_short(old)} became {_short(new)}"
    for one, other, place in pairs:
        found = _difference(one, other, place)
        if found is not None:
            return found
    if len(old) != len(new):
        return f"{where}: {len(old)} entries became {len(new)}"
    return None


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 160 else f"{text[:157]}..."


def figure_differences(outcome: Outcome, store: Path) -> Iterator[str]:
    path = store / "figures" / f"{outcome.name}.json.gz"
    if not path.is_file():
        yield "has no frozen figures"
        return
    frozen = json.loads(gzip.decompress(path.read_bytes()))
    for name in sorted({*frozen, *outcome.figures}):
        if name not in outcome.figures:
            yield f"{name} is not written any more"
        elif name not in frozen:
            yield f"{name} was not written before"
        elif "sha256" in frozen[name]:
            found = _hashed(outcome.figures[name])
            if found != frozen[name]:
                yield f"{name}: its content became another (only hashes are kept): {frozen[name]} became {found}"
        else:
            (kind, old), (new_kind, new) = *frozen[name].items(), *outcome.figures[name].items()
            said = f"{name}: {kind} became {new_kind}" if kind != new_kind else _difference(old, new, name)
            if said is not None:
                yield said


def text_differences(outcome: Outcome, store: Path, most: int = 12) -> Iterator[str]:
    path = store / "texts" / f"{outcome.name}.txt"
    old = path.read_text(encoding="utf-8") if path.is_file() else ""
    if old != outcome.text:
        lines = [*difflib.unified_diff(old.splitlines(), outcome.text.splitlines(), "frozen", "now", "", "", 0, "")]
        yield "\n    ".join([*lines[2 : 2 + most], *(["..."] if len(lines) > most + 2 else [])]) or "other line ends"


def _write(outcome: Outcome, store: Path, *, figures: bool) -> None:
    texts, data = store / "texts", store / "figures"
    texts.mkdir(parents=True, exist_ok=True)
    (texts / f"{outcome.name}.txt").write_text(outcome.text, encoding="utf-8")
    if figures:
        data.mkdir(exist_ok=True)
        (data / f"{outcome.name}.json.gz").write_bytes(_packed(outcome.figures))


# The command


def _prepare() -> str:
    """Make this process one from which workers are forked: what they import is imported, what they print is plain."""
    os.environ.update(COLUMNS="80", LINES="50", NO_COLOR="1", TERM="dumb", MPLBACKEND="agg")
    os.environ.update(dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1"))
    for name in ("FORCE_COLOR", "TRIOSIM_DEBUG", "PYTHONPATH"):
        os.environ.pop(name, None)
    from triosim.cli import run

    run(["simulate", str(FOLDERS["traces"] / "gpt2_a100_fake.json.gz"), "-p", "tp=2", "-b", "4", "--quiet"])
    return _foreign()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.golden.compare", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME_OR_GLOB", help="which configurations; all by default")
    parser.add_argument("--jobs", type=int, default=4, help="processes, 4 by default")
    parser.add_argument("--texts", action="store_true", help="accept new texts, where all figures are the same")
    parser.add_argument("--freeze", action="store_true", help="write figures and texts")
    parser.add_argument("--store", type=Path, default=ROOT / ".golden", help="where they are; .golden by default")
    parser.add_argument("--slowest", type=int, default=0, metavar="N", help="show which took longest")
    parser.add_argument("--list", action="store_true", help="show the names")
    chosen = parser.parse_args()
    wanted = [
        number
        for number, one in enumerate(ALL)
        if not chosen.names or any(fnmatch(one.name, pattern) for pattern in chosen.names)
    ]
    if chosen.list:
        print(*(ALL[number].name for number in wanted), sep="\n")
        return 0
    names = [one.name for one in ALL]
    if len({*names}) != len(names):
        print(f"two configurations have one name: {sorted({one for one in names if names.count(one) > 1})}")
        return 1
    if Path.cwd().resolve() != ROOT:
        print(f"run it from {ROOT}")
        return 1
    if not (chosen.freeze or chosen.store.is_dir()):
        print("nothing is frozen yet: run it with --freeze on the tree to compare with")
        return 1
    if not wanted:
        print("no configuration has such a name; --list shows them")
        return 1
    if foreign := _prepare():
        print(foreign)
        return 1
    started = time.perf_counter()
    with multiprocessing.get_context("fork").Pool(chosen.jobs, maxtasksperchild=1) as pool:
        outcomes = sorted(pool.imap_unordered(run_one, wanted), key=lambda one: names.index(one.name))
    status = _freeze(outcomes, chosen.store) if chosen.freeze else _compare(outcomes, chosen.store, accept=chosen.texts)
    for one in sorted(outcomes, key=lambda one: -one.seconds)[: chosen.slowest]:
        print(f"{one.seconds:6.2f} s  {one.name}")
    print(f"{len(outcomes)} configurations in {time.perf_counter() - started:.0f} s")
    return status


def _freeze(outcomes: list[Outcome], store: Path) -> int:
    for one in outcomes:
        if one.wrong:
            print(f"{one.name}: not frozen: {one.wrong}")
        else:
            _write(one, store, figures=True)
    return int(any(one.wrong for one in outcomes))


def _compare(outcomes: list[Outcome], store: Path, *, accept: bool) -> int:
    figures = texts = 0
    for one in outcomes:
        said = [f"{one.name}: {text}" for text in ([one.wrong] if one.wrong else figure_differences(one, store))]
        figures += bool(said)
        other = [] if one.wrong else [*text_differences(one, store)]
        texts += bool(other)
        if not accept:
            said += [f"{one.name}: text\n    {text}" for text in other]
        if said:
            print(*said, sep="\n")
    print(f"{figures} configurations with other figures, {texts} with other texts")
    if accept and figures:
        print("texts are not accepted while figures differ")
    elif accept:
        for one in outcomes:
            _write(one, store, figures=False)
    return int(bool(figures or (texts and not accept)))


if __name__ == "__main__":
    sys.exit(main())
