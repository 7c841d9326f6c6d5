"""Whoever writes in a run, in Python, in C or in another process: files that existed stay as they were."""

from __future__ import annotations

import hashlib
import platform
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from test_live_ranks import run

torch = pytest.importorskip("torch")

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
        ("os.open('notes', os.O_WRONLY, dir_fd=os.open('user', os.O_RDONLY))", "files outside --files are only read"),
    ],
)
def test_what_no_replaced_function_reaches_is_refused(tmp_path: Path, user: Path, write: str, said: str) -> None:
    before = digest(user)
    done = run(tmp_path, f"import ctypes, os, subprocess\n{write}\n", "-q")
    assert said in done.stderr
    assert digest(user) == before
