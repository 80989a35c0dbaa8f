"""The shape of the project: who imports whom, what loads at import, sizes, the commands, what is packaged."""

from __future__ import annotations

import ast
import importlib.resources
import pkgutil
import re
import statistics
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import quadform.cli
from quadform.cli import _app

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "quadform"
FILES = sorted(SOURCE.rglob("*.py"))

# package -> the packages of quadform that it may import; the files of quadform/ itself are under their own names
ALLOWED = {
    "_errors": set(),
    "algebra": {"_errors"},
    "forms": {"_errors", "algebra"},
    "layers": {"_errors", "algebra", "forms"},
    "models": {"_errors", "algebra", "forms", "layers"},
    "reproduce": {"_errors", "algebra", "forms", "layers", "models"},
    "distributed": {"_errors", "algebra", "forms"},
    "convert": {"_errors", "algebra", "forms", "layers"},
    "laws": {"_errors", "algebra", "forms", "layers", "convert"},
    "inspect": {"_errors", "algebra", "forms", "layers"},
    "rewrite": {"_errors", "algebra", "forms", "layers", "convert", "inspect"},
    "integrations": {"_errors", "algebra", "forms", "layers", "models", "distributed", "convert", "inspect", "rewrite"},
    "__init__": {"_errors", "algebra", "forms", "layers", "convert", "inspect", "rewrite"},
}
ALLOWED["cli"] = set(ALLOWED) - {"__init__"}

REQUIRED = {"torch", "safetensors", "typer", "rich", "jinja2", "markupsafe"}  # the last is a part of jinja2
LONGEST = 350
MEDIAN = 150


def package_of(path: Path) -> str:
    """The package directly under quadform that a file is in."""
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return parts[0]


def imports(path: Path) -> Iterator[tuple[str, bool]]:
    """Each module that a file imports, and whether the import stands inside a function or under TYPE_CHECKING."""

    def visit(node: ast.AST, deferred: bool) -> Iterator[tuple[str, bool]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                yield from ((alias.name, deferred) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                assert child.level == 0, f"{path}: a relative import"
                assert child.module is not None
                names = [f"{child.module}.{alias.name}" for alias in child.names]
                yield from ((name, deferred) for name in (names if child.module == "quadform" else [child.module]))
            else:
                checking = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
                inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
                yield from visit(child, deferred or checking or inside)

    yield from visit(ast.parse(path.read_text()), False)


def ours(path: Path) -> set[str]:
    """The packages of quadform that a file imports, its own left out."""
    found = {name.split(".")[1] for name, _ in imports(path) if name.startswith("quadform.")}
    return found - {package_of(path)}


@pytest.mark.parametrize("package", sorted({package_of(path) for path in FILES}))
def test_imports_go_one_way(package: str) -> None:
    for path in FILES:
        if package_of(path) == package:
            wrong = ours(path) - ALLOWED[package]
            assert not wrong, f"{path.relative_to(ROOT)} may not import {sorted(wrong)}"


def test_the_allowed_imports_have_no_cycle() -> None:
    remaining = {name: set(allowed) for name, allowed in ALLOWED.items()}
    while remaining:
        free = {name for name, allowed in remaining.items() if not allowed & set(remaining)}
        assert free, f"a cycle among {sorted(remaining)}"
        remaining = {name: allowed for name, allowed in remaining.items() if name not in free}


def test_other_packages_are_imported_by_integrations_alone_and_inside_functions() -> None:
    for path in FILES:
        for name, deferred in imports(path):
            top = name.split(".")[0]
            if top in sys.stdlib_module_names or top in REQUIRED or top == "quadform":
                continue
            where = f"{path.relative_to(ROOT)} imports {name}"
            assert package_of(path) == "integrations", where
            assert deferred, f"{where} when it is loaded: only a function may"


def test_the_command_line_s_packages_are_not_imported_by_the_operator() -> None:
    for path in FILES:
        if package_of(path) in {"algebra", "forms", "layers", "convert", "models", "distributed"}:
            tops = {name.split(".")[0] for name, _ in imports(path)}
            assert not tops & {"typer", "rich", "jinja2"}, path.relative_to(ROOT)


def test_importing_quadform_loads_nothing_that_is_optional() -> None:
    """Neither an optional package nor the ones that only the command line and the report's page need."""
    code = "\n".join(
        [
            "import sys, torch",
            "before = {name.partition('.')[0] for name in sys.modules}",
            "import quadform",
            "after = {name.partition('.')[0] for name in sys.modules}",
            "print(*sorted(after - before - sys.stdlib_module_names))",
        ]
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert set(out.split()) <= {"quadform", "safetensors"}


def test_no_file_is_long() -> None:
    lengths = {str(path.relative_to(SOURCE)): len(path.read_text().splitlines()) for path in FILES}
    too_long = {name: n for name, n in lengths.items() if n > LONGEST}
    assert not too_long
    assert statistics.median(lengths.values()) <= MEDIAN


def texts() -> list[Path]:
    """Everything that the project publishes as text."""
    kinds = {".py", ".md", ".toml", ".txt", ".j2", ".js", ".svg", ""}
    folders = ("src", "tests", "docs", "scripts", "benchmarks", "examples", "requirements", ".ci")
    inside = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()]
    paths = [path for path in inside + list(ROOT.glob("*.*")) + [ROOT / "Makefile"] if path.suffix in kinds]
    skipped = {"__pycache__", ".venv"}
    return [
        path for path in paths if path != Path(__file__).resolve() and not skipped & set(path.parts) and path.is_file()
    ]


def test_no_absolute_paths() -> None:
    pattern = re.compile(r"""(?<![\w.:/~-])/(?:home|root|work|tmp|opt|usr|Users|mnt|var)/\w""")
    for path in texts():
        found = pattern.findall(re.sub(r"\A#!.*", "", path.read_text()))
        assert not found, f"{path.relative_to(ROOT)}: {found}"


def test_nothing_is_left_to_do() -> None:
    words = re.compile(r"\b(?:" + "|".join(("TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK")) + r")\b")
    for path in texts():
        assert not words.search(path.read_text()), path.relative_to(ROOT)


def verbs() -> list[str]:
    """The commands: one public file each."""
    return [info.name for info in pkgutil.iter_modules(quadform.cli.__path__) if not info.name.startswith("_")]


@pytest.fixture(scope="module")
def command() -> typer.core.TyperGroup:
    """The command line with its verbs."""
    if not _app.app.registered_commands:
        _app.register_verbs()
    group = typer.main.get_command(_app.app)
    assert isinstance(group, typer.core.TyperGroup)
    return group


def test_every_file_of_the_command_line_is_a_verb(command: typer.core.TyperGroup) -> None:
    assert set(verbs()) <= set(command.commands)


@pytest.mark.parametrize("verb", verbs())
def test_a_verb_has_help_and_json(verb: str, command: typer.core.TyperGroup) -> None:
    options = {option for parameter in command.commands[verb].params for option in parameter.opts}
    assert "--json" in options
    result = CliRunner().invoke(_app.app, [verb, "--help"])
    assert result.exit_code == 0
    assert "Usage" in result.output


def test_the_command_answers() -> None:
    code = "from quadform.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code, "--help"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert all(verb in done.stdout for verb in verbs())


def data_files() -> list[str]:
    """Files of the package that are not Python."""
    skipped = {".py", ".pyc"}
    paths = [path for path in SOURCE.rglob("*") if path.is_file() and path.suffix not in skipped]
    return sorted(str(path.relative_to(SOURCE)) for path in paths)


def test_the_data_files_are_found_beside_the_code() -> None:
    package = importlib.resources.files("quadform")
    assert "py.typed" in data_files()
    assert any(name.endswith(".j2") for name in data_files())
    for name in data_files():
        assert package.joinpath(*name.split("/")).is_file()


def test_the_wheel_holds_every_file_and_nothing_else(tmp_path: Path) -> None:
    wheel = pytest.importorskip("hatchling.builders.wheel")
    (built,) = wheel.WheelBuilder(str(ROOT)).build(directory=str(tmp_path))
    with zipfile.ZipFile(built) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    expected = {f"quadform/{path.relative_to(SOURCE).as_posix()}" for path in FILES}
    expected |= {f"quadform/{name}" for name in data_files()}
    assert names == expected


def test_every_module_says_what_it_is_for() -> None:
    for path in FILES:
        tree = ast.parse(path.read_text())
        assert ast.get_docstring(tree) or path.name == "__init__.py", (
            f"{path.relative_to(ROOT)} does not say what it is for"
        )
