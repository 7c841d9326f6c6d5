"""The shape of the house: what may import what, what a start may cost, and what a wheel may hold."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from triosim import plugins

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pytest brings it

ROOT = Path(__file__).resolve().parents[1]

#: The four folders, and what they are imported as.
PACKAGES = {
    "triosim": "triosim",
    "tracer": "triosim.tracer",
    "extrapolators": "triosim.extrapolators",
    "networks": "triosim.networks",
}

#: From the ground up; the longest prefix of a module's name says on which floor it is.
FLOORS = (
    (
        "triosim",  # its version: everything else that it names, it imports when it is asked for
        *("triosim.errors", "triosim.units", "triosim.conditions", "triosim.slowdowns", "triosim.output"),
        "triosim.collecting",
        *("triosim.plugins", "triosim.gpus", "triosim.gpu_file"),
        *("triosim.trace", "triosim.trace_formats", "triosim.trace_summary", "triosim.tracer"),
        "triosim.task_streams",
        *(f"triosim.networks.{name}" for name in ("topology", "topology_file", "topology_model", "yaml_lines")),
        *(
            "triosim.networks.dimensional",
            "triosim.networks.unbuilt",
            "triosim.networks.optics",
            "triosim.networks.system_keys",
        ),
        "triosim.networks.calibration",
        *(f"triosim.networks.{name}" for name in ("routing", "shapes", "presets", "summary", "ring_order", "picture")),
    ),
    ("triosim.tasks",),
    (
        *("triosim.networks", "triosim.compute"),
        *(f"triosim.networks.calibration.{name}" for name in ("judging", "run")),
    ),
    (
        *("triosim.extrapolators", "triosim.memory", "triosim.models"),
        *(f"triosim.tracer.{name}" for name in ("measure", "benchmark_cases")),
    ),
    (
        *("triosim.engine", "triosim.compute_units", "triosim.pace", "triosim.events", "triosim.unequal"),
        *("triosim.rank", "triosim.rendezvous", "triosim.recording", "triosim.deadlock", "triosim.folding"),
        *("triosim.foreseen", "triosim.chains", "triosim.lone", "triosim.shared_links"),
    ),
    (
        *("triosim.simulation", "triosim.captured_run", "triosim.capturing", "triosim.comparison"),
        *("triosim.what_if", "triosim.draws", "triosim.metrics", "triosim.scheduling", "triosim.memory_run"),
        *("triosim.capturing_ranks", "triosim.capturing_processes"),
        *("triosim.result", "triosim.reports"),
    ),
    (
        *("triosim.cli", "triosim.cli_options", "triosim.cli_conditions", "triosim.cli_run", "triosim.cli_command"),
        *(
            "triosim.cli_calibrate",
            "triosim.cli_compare",
            "triosim.cli_capture",
            "triosim.cli_describe",
            "triosim.cli_memory",
            "triosim.cli_schedule",
            "triosim.__main__",
        ),
    ),
)
FLOOR_OF = {prefix: number for number, floor in enumerate(FLOORS) for prefix in floor}

#: What takes long to import, and is needed by some runs only.
HEAVY = ("torch", "sklearn", "pandas", "matplotlib", "networkx", "numba", "pydantic")

MOST_LINES = 500


class Import(NamedTuple):
    """That a module imports another; ``late`` is inside of a function, or for the type checker alone."""

    source: str
    target: str
    late: bool


def modules() -> dict[str, Path]:
    found = {}
    for folder, package in PACKAGES.items():
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            found[".".join((package, *(part for part in parts if part != "__init__")))] = path
    return found


MODULES = modules()


def imports_of(name: str) -> Iterator[Import]:
    tree = ast.parse(MODULES[name].read_text(encoding="utf-8"))
    at_once = set()
    todo: list[ast.AST] = [tree]
    while todo:
        node = todo.pop()
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            at_once.add(node)
        elif not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)) and not is_type_checking(node):
            todo += ast.iter_child_nodes(node)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name} line {node.lineno}: a relative import"
            targets = [
                f"{node.module}.{alias.name}" if f"{node.module}.{alias.name}" in MODULES else str(node.module)
                for alias in node.names
            ]
        else:
            continue
        for target in targets:
            if target.partition(".")[0] == "triosim":
                yield Import(name, target, late=node not in at_once)


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def floor(module: str) -> int:
    prefix = module
    while prefix not in FLOOR_OF:
        prefix = prefix.rpartition(".")[0]
    return FLOOR_OF[prefix]


@pytest.mark.parametrize("name", [name for name in MODULES if name != "triosim"])
def test_an_import_goes_down(name: str) -> None:
    upward = [found for found in imports_of(name) if floor(found.target) > floor(name)]
    assert not upward


def test_every_module_has_its_floor() -> None:
    """A new file at the top of triosim/ is put on a floor here, instead of landing on the ground by default."""
    assert not [name for name in MODULES if floor(name) == 0 and name.count(".") == 1 and name not in FLOOR_OF]


def test_no_imports_go_in_a_circle() -> None:
    """Of those that happen when a module is loaded."""
    below = {name: {found.target for found in imports_of(name) if not found.late} for name in MODULES}
    while True:
        leaves = [name for name, targets in below.items() if not targets & below.keys() - {name}]
        if not leaves:
            break
        for name in leaves:
            del below[name]
    assert not below


#: What runs a script under the tracer.
CAPTURING = ("triosim.capturing", "triosim.capturing_processes", "triosim.capturing_ranks", "triosim.cli_capture")


def test_nothing_needs_the_tracer() -> None:
    """It needs PyTorch, so only a user's own script asks for it, or a command that runs PyTorch, and it late."""
    users = [
        found
        for name in MODULES
        if not name.startswith("triosim.tracer") and not (name in CAPTURING and all(one.late for one in tracing(name)))
        for found in imports_of(name)
        if found.target.startswith("triosim.tracer") and not (name == "triosim.cli_calibrate" and found.late)
    ]
    assert not users


def tracing(name: str) -> list[Import]:
    return [found for found in imports_of(name) if found.target.startswith("triosim.tracer")]


@pytest.mark.parametrize(
    "program",
    [
        "import triosim",
        "import triosim.cli",
        "import triosim.simulation",
        "import triosim; triosim.Topology.load('dgx-h100', gpus=16)",
        "from triosim.cli import run; run(['simulate', 'TRACE', '--parallel', 'ddp', '--gpus', '2', '--quiet'])",
    ],
)
def test_a_start_does_not_pay_for_what_it_does_not_use(program: str, tmp_path: Path) -> None:
    trace = ROOT / "examples" / "traces" / "vgg13_a100_fake.json.gz"
    program = program.replace("TRACE", str(trace))
    ask = f"import sys\n{program}\nprint(*sorted(sys.modules.keys() & {set(HEAVY)!r}))"
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.split() == []
    assert done.stderr == ""


@pytest.mark.parametrize("package", ["triosim", "triosim.compute", "triosim.extrapolators", "triosim.networks"])
def test_no_public_name_is_hidden_behind_a_module_of_the_same_name(package: str) -> None:
    """A submodule, once imported, is an attribute of its package, and ``__getattr__`` is not asked any more."""
    names = importlib.import_module(package).__all__
    hidden = {name for name in names if f"{package}.{name}" in MODULES}
    assert hidden <= {"max_min"}  # which is meant to be the module


@pytest.mark.parametrize("name", MODULES)
def test_a_module_says_in_a_sentence_what_it_is_about(name: str) -> None:
    text = ast.get_docstring(ast.parse(MODULES[name].read_text(encoding="utf-8"))) or ""
    first = " ".join(text.partition("\n\n")[0].split())
    assert len(first.split()) >= 4
    assert any(f"{end} " in f"{first} " for end in ".?:")


@pytest.mark.parametrize("name", MODULES)
def test_a_file_can_be_read_in_one_sitting(name: str) -> None:
    assert len(MODULES[name].read_text(encoding="utf-8").splitlines()) <= MOST_LINES


def test_a_wheel_holds_triosim_and_nothing_beside_it() -> None:
    """People's model repositories have a ``networks/`` of their own, so ours is installed inside ``triosim/`` only."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    packages, folders = settings["packages"], settings["package-dir"]
    assert folders == {package: folder for folder, package in PACKAGES.items()}
    assert {package.partition(".")[0] for package in packages} == {"triosim"}
    assert "py-modules" not in settings


def test_a_wheel_holds_all_of_triosim() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    with_code = {name if path.name == "__init__.py" else name.rpartition(".")[0] for name, path in MODULES.items()}
    assert sorted(settings["packages"]) == sorted(with_code)
    others = [
        path
        for folder in PACKAGES
        for path in (ROOT / folder).rglob("*")
        if path.is_file()
        and path.suffix != ".py"
        and not any(part[:2] == "__" or part[:1] == "." for part in path.parts)
    ]
    patterns = settings["package-data"]["*"]
    assert not [path for path in others if not any(path.match(pattern) for pattern in patterns)]


@pytest.mark.parametrize(
    ("group", "name"), [(group, name) for group in plugins.GROUPS for name in plugins.BUILT_IN[group]]
)
def test_what_ships_with_triosim_can_be_loaded_by_its_name(group: plugins.Group, name: str) -> None:
    found = plugins.load(group, name)
    for alternatives in plugins.REQUIRED[group]:
        assert any(callable(getattr(found, method, None)) for method in alternatives)
    assert not getattr(found, "__abstractmethods__", None)
