"""Whoever writes in a run, in Python, in C or in another process: files that existed stay as they were."""

from __future__ import annotations

import hashlib
import platform
import re
import sqlite3
import subprocess
import sys
from pathlib import Path

import numpy
import pytest
from test_live_ranks import run

torch = pytest.importorskip("torch")

from triosim.tracer.programs import program_tracer  # noqa: E402

#: Each function changes what lies in the folder "user", or adds to it; what it prints is what it found.
WRITERS = """
import ctypes, multiprocessing, os, sqlite3, subprocess, sys, tempfile, threading, torch
from torch.profiler import profile
def database():
    with sqlite3.connect("user/data.db") as c:
        c.execute("insert into t values (2)")
    print(c.execute("select * from t").fetchall())
def database_by_uri():
    with sqlite3.connect("file:user/data.db?mode=rwc", uri=True) as c:
        c.execute("insert into t values (3)")
    print(c.execute("select * from t").fetchall())
def archive():
    writer = torch._C.PyTorchFileWriter("user/a.pt"); writer.write_record("x", b"1", 1); writer.write_end_of_file()
    print(torch._C.PyTorchFileReader("user/a.pt").get_record("x"))
def scripted():
    torch.jit.save(torch.jit.script(torch.nn.ReLU()), "user/b.pt"); print(type(torch.jit.load("user/b.pt")).__name__)
def traced_profile():
    with profile() as p:
        torch.ones(2).sum()
    p.export_chrome_trace("user/a.pt"); print(open("user/a.pt").read(1))
def forked():
    child = multiprocessing.get_context("fork").Process(target=lambda: open("user/notes", "w").write("child"))
    child.start(); child.join(); print(child.exitcode, open("user/notes").read())
def late():
    thread = threading.Thread(target=lambda: open("user/notes", "a").write(" and thread"))
    thread.start(); thread.join(); print(open("user/notes").read())
def temporary():
    with tempfile.NamedTemporaryFile("w+") as file:
        subprocess.run(["sh", "-c", "echo hello > " + file.name], check=True); print(file.read().strip())
def managed():
    with multiprocessing.get_context("fork").Manager() as manager:
        print(manager.list([1]))
def entered():
    os.makedirs("new/run"); os.chdir("new/run"); subprocess.run("echo 1 > own", shell=True)
    print(open("own").read().strip(), os.getcwd() == start + "/new/run")
    os.chdir(start)
def work(number):
    torch.save(torch.ones(number), "user/b.pt")
    with open("user/notes", "w") as file:
        file.write("spawned")
    return os.listdir("user")
def spawned():
    context = multiprocessing.get_context("spawn")
    child = context.Process(target=work, args=(2,)); child.start(); child.join()
    print(child.exitcode, open("user/notes").read(), torch.load("user/b.pt").shape)
    with context.Pool(1) as pool:
        print(pool.map(work, [3]))
def started():
    with open("own.py", "w") as file:
        file.write("open('user/notes', 'w').write('started')")
    print(subprocess.run([sys.executable, "own.py"]).returncode, open("user/notes").read())
def commanded():
    print(os.system("mkdir -p user/new && cp user/notes user/new/copy && rm user/a.pt"), sorted(os.listdir("user")))
    print(subprocess.run("ls user/new; nvidia-smi -L > user/gpus", shell=True, capture_output=True, text=True).stdout)
    print(open("user/gpus").read().split(":")[0])
if __name__ == "__main__":
    start = os.getcwd()
    all_ = (database, database_by_uri, archive, scripted, traced_profile, forked, late, temporary, managed, entered)
    for one in (*all_, spawned, started, commanded):
        print(one.__name__, end=": ", flush=True)
        one()
"""
FOUND = """\
database: [(1,), (2,)]
database_by_uri: [(1,), (2,), (3,)]
archive: b'1'
scripted: RecursiveScriptModule
traced_profile: {
forked: 0 child
late: child and thread
temporary: hello
managed: [1]
entered: 1 True
spawned: 0 spawned torch.Size([2])
[['a.pt', 'b.pt', 'data.db', 'notes']]
started: 0 started
commanded: 0 ['b.pt', 'data.db', 'new', 'notes']
copy

GPU 0
"""


@pytest.fixture
def user(tmp_path: Path) -> Path:
    """A user's folder."""
    (tmp_path / "user").mkdir()
    for name in ("notes", "a.pt", "b.pt"):
        (tmp_path / "user" / name).write_text("by the user")
    with sqlite3.connect(tmp_path / "user" / "data.db") as made:
        made.execute("create table t (a)")
        made.execute("insert into t values (1)")
    return tmp_path / "user"


def digest(folder: Path) -> dict[str, tuple[str, int]]:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(one): (hashlib.sha256(one.read_bytes()).hexdigest(), one.stat().st_mtime_ns) for one in files}


def test_no_writer_changes_a_file(tmp_path: Path, user: Path) -> None:
    before = digest(user)
    done = run(tmp_path, WRITERS, "-q", "--files", "own")
    assert (done.stdout, done.returncode) == (FOUND, 0), done.stderr
    assert digest(user) == before


def has_landlock() -> bool:
    """Whether this kernel refuses what is outside some folders (Linux 5.19, where it is switched on)."""
    asked = "import ctypes; print(ctypes.CDLL(None).syscall(444, None, 0, 1))"
    found = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True).stdout
    return platform.system() == "Linux" and int(found) >= 2


@pytest.mark.skipif(not has_landlock(), reason="the kernel has no Landlock")
@pytest.mark.parametrize(
    ("write", "said"),
    [
        ("ctypes.CDLL(None).unlink(b'user/notes'); raise SystemExit(ctypes.get_errno())", ""),
        ("open('/proc/self/fd/%d' % os.open('user/notes', os.O_RDONLY), 'w')", "files outside --files are only read"),
    ],
)
def test_what_no_replaced_function_reaches_is_refused(tmp_path: Path, user: Path, write: str, said: str) -> None:
    before = digest(user)
    done = run(tmp_path, f"import ctypes, os, subprocess\n{write}\n", "-q")
    assert said in done.stderr
    assert digest(user) == before


#: Each way to change a file, in a folder of its own with "file", "sub/inner", "link", "array.npy" and "data.db"; whether the
#: script then finds what it did.
WAYS = """
import fcntl, fileinput, logging, mmap, multiprocessing, os, pathlib, shutil, sqlite3, subprocess, sys, tempfile
import numpy as np, torch
def holds(text, file="file"):
    return open(file).read().startswith(text)
def sh(line):
    subprocess.run(line, shell=True, check=True, capture_output=True)
def locked():
    with open("file", "r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX); fcntl.lockf(file, fcntl.LOCK_EX); file.write("LOCKED"); file.flush()
def mapped():
    with open("file", "r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        memory[:2] = b"MM"
def by_descriptor():
    opened = os.open("file", os.O_RDWR); os.pwrite(opened, b"FD", 0); os.ftruncate(opened, 2); os.fchmod(opened, 0o600)
def array():
    made = np.memmap("file", dtype="u1", mode="r+"); made[:2] = 65; made.flush()
def in_array():
    made = np.lib.format.open_memmap("array.npy", mode="r+"); made[:] = 7; made.flush()
def database():
    with sqlite3.connect("data.db") as known:
        known.execute("insert into t values (2)")
def beside():
    made = tempfile.NamedTemporaryFile(dir=".", delete=False); made.write(b"tmp"); made.close(); os.replace(made.name, "file")
def in_place():
    for line in fileinput.input("file", inplace=True):
        print(line.upper(), end="")
def logged():
    handler = logging.FileHandler("file", mode="w"); handler.emit(logging.makeLogRecord({"msg": "logged"})); handler.close()
def child():
    open("file", "r+").write("CHILD")
def started(method):
    process = multiprocessing.get_context(method).Process(target=child); process.start(); process.join()
WAYS = [
    (locked, lambda: holds("LOCKED")),
    (mapped, lambda: holds("MM")),
    (by_descriptor, lambda: holds("FD")),
    (array, lambda: holds("AA")),
    (in_array, lambda: np.load("array.npy").tolist() == [7, 7]),
    (database, lambda: len(list(sqlite3.connect("data.db").execute("select * from t"))) == 2),
    (beside, lambda: holds("tmp")),
    (in_place, lambda: holds("HELLO")),
    (logged, lambda: holds("logged")),
    (lambda: os.truncate("file", 2), lambda: os.path.getsize("file") == 2),
    (lambda: shutil.move("sub", "moved"), lambda: holds("inner", "moved/inner") and not os.path.exists("sub")),
    (lambda: shutil.move("file", "sub"), lambda: holds("hello", "sub/file")),
    (lambda: shutil.rmtree("sub"), lambda: not os.path.exists("sub")),
    (lambda: shutil.copytree("sub", ".", dirs_exist_ok=True), lambda: holds("inner", "inner")),
    (lambda: pathlib.Path("hard").hardlink_to("file") or open("hard", "w").write("both"), lambda: holds("both")),
    (lambda: open("link", "w").write("led"), lambda: holds("led") and os.path.islink("link")),
    (lambda: os.chmod("sub", 0o700), lambda: os.stat("sub").st_mode & 0o777 == 0o700),
    (lambda: os.utime("file", (1, 1)), lambda: os.stat("file").st_mtime == 1),
    (lambda: torch.save(torch.ones(3), "file"), lambda: torch.load("file").shape == (3,)),
    (lambda: started("spawn"), lambda: holds("CHILD")),
    (lambda: started("fork"), lambda: holds("CHILD")),
    (lambda: sh("rm -rf sub file"), lambda: not os.path.exists("sub") and not os.path.exists("file")),
    (lambda: sh("cp sub/inner file; cp -l file second; echo new > second"), lambda: holds("new")),
    (lambda: sh("sed -i s/hello/bye/ file"), lambda: holds("bye")),
    (lambda: sh("mv sub/inner file; mv sub other"), lambda: holds("inner") and os.listdir("other") == []),
    (lambda: sh("touch -d @5 file; chmod 700 . sub; truncate -s 1 file"), lambda: os.path.getsize("file") == 1),
    (lambda: sh("tar cf t file; echo x > file; tar xf t"), lambda: holds("hello")),
    (lambda: sh("find . -name inner -delete"), lambda: os.listdir("sub") == []),
    (lambda: sh(sys.executable + " -S -E -c \\"open('file', 'r+').write('PY')\\""), lambda: holds("PY")),
    (lambda: os.popen("echo popen > file").close(), lambda: holds("popen")),
]
if __name__ == "__main__":
    for number, (does, is_done) in enumerate(WAYS):
        os.chdir(f"ways/{number}")
        does()
        print(number, is_done())
        os.chdir("../..")
"""


def states(folder: Path) -> dict[str, tuple[object, ...]]:
    """Return what is in a folder: rights, times, names and contents."""
    found = {}
    for path in (folder, *sorted(folder.rglob("*"))):
        state = path.lstat()
        held = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
        found[str(path)] = (state.st_mode, state.st_mtime_ns, state.st_nlink, state.st_ino, held)
    return found


@pytest.mark.skipif(not program_tracer.is_able(), reason="programs are watched on Linux on x86-64")
def test_no_way_to_change_a_file_changes_it_and_the_script_finds_what_it_did(tmp_path: Path) -> None:
    count = len(re.findall(r"^    \(.*\),$", WAYS, re.MULTILINE))
    for number in range(count):
        folder = tmp_path / "ways" / str(number)
        (folder / "sub").mkdir(parents=True)
        (folder / "file").write_text("hello\n")
        (folder / "sub" / "inner").write_text("inner")
        (folder / "link").symlink_to("file")
        numpy.save(folder / "array.npy", numpy.array([1, 2]))
        with sqlite3.connect(folder / "data.db") as known:
            known.execute("create table t (a)")
            known.execute("insert into t values (1)")
    before = states(tmp_path / "ways")
    done = run(tmp_path, WAYS, "-q")
    assert (done.stdout.splitlines(), done.returncode) == ([f"{one} True" for one in range(count)], 0), done.stderr
    assert states(tmp_path / "ways") == before


SAVED_BY_ALL = """
import torch
for step in range(30):
    torch.save({"step": step}, "one.pt")
print("saved")
"""


def test_ranks_may_save_one_file(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SAVED_BY_ALL)
    done = subprocess.run(
        [sys.executable, "-m", "triosim", "run", "--world", "4", "--gpu", "H100", "--no-fold", "train.py"],
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert "saved" in done.stdout, done.stderr
    assert "Traceback" not in done.stderr


TOKENIZER = """
from tokenizers import Tokenizer, models
import os
made = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
os.makedirs("made")
made.save("made/tokenizer.json")
made.model.save("made", "model")
print(Tokenizer.from_file("made/tokenizer.json").get_vocab_size(), sorted(os.listdir("made")))
"""


def test_a_tokenizer_is_saved_and_loaded(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    done = run(tmp_path, TOKENIZER)
    assert done.stdout.splitlines()[0] == "2 ['model-vocab.json', 'tokenizer.json']", done.stderr
    assert [one.name for one in tmp_path.iterdir()] == ["train.py"]
