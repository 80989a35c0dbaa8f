"""The script behind the make targets: what it announces, what it refuses, and how it survives an interruption."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SPEC = importlib.util.spec_from_file_location("bootstrap", ROOT / "scripts" / "bootstrap.py")
assert SPEC is not None and SPEC.loader is not None
bootstrap = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(bootstrap)

BOTH = {"venv", "ensurepip"}
PLENTY = 100 * bootstrap.GIGABYTE


def a_checkout(root: Path) -> Path:
    """A folder with the four files that decide what an installation contains."""
    for name in ("pyproject.toml", "constraints.txt", "requirements/no-deps.txt", "scripts/bootstrap.py"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text((ROOT / name).read_text())
    return root


def pretend(environment: bootstrap.Environment) -> None:  # type: ignore[name-defined]
    """A virtual environment, as far as the marks are concerned."""
    environment.python.parent.mkdir(parents=True)
    environment.python.symlink_to(sys.executable)
    (environment.folder / "pyvenv.cfg").touch()


def test_sizes_are_the_sums_of_the_comments() -> None:
    text = "# a heading\n\n# [one]\na==1  # 2.5\nb==2 ; python_version < '3.11'\n# [two]\nc==1.0  # 0.5\nd==1  # 1.0\n"
    assert bootstrap.download_sizes(text) == {"one": 2.5, "two": 1.5}


def test_the_constraints_have_every_section_that_a_target_names() -> None:
    sizes = bootstrap.download_sizes((ROOT / "constraints.txt").read_text())
    for _, sections, _ in bootstrap.TARGETS.values():
        assert all(sizes[name] > 1 for name in sections)


def test_torch_is_pinned_and_every_line_is_a_pin() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert any(line.startswith("torch==2.13.0") for line in pins)
    assert all("==" in line for line in pins)


def test_nothing_is_missing_on_a_good_machine() -> None:
    assert bootstrap.missing((3, 11, 7), BOTH, PLENTY, 2.5) == []


@pytest.mark.parametrize(
    ("version", "modules", "free", "words"),
    [
        ((3, 9, 1), BOTH, PLENTY, ["3.10", "3.9.1"]),
        ((3, 11, 0), {"venv"}, PLENTY, ["python3-venv"]),
        ((3, 11, 0), BOTH, bootstrap.GIGABYTE, ["2.5 GB", "1.0 GB"]),
    ],
)
def test_what_is_missing_is_named(version: tuple[int, ...], modules: set[str], free: int, words: list[str]) -> None:
    (sentence,) = bootstrap.missing(version, modules, free, 2.5)
    assert all(word in sentence for word in words)


@pytest.mark.parametrize(
    ("output", "words"),
    [
        (
            "WARNING: Retrying after NewConnectionError('Temporary failure in name resolution')\n"
            "ERROR: No matching distribution found for torch",
            "cannot be reached",
        ),
        ("ERROR: No matching distribution found for torch==2.13.0", "has no 'torch==2.13.0'"),
        ("ERROR: Could not install packages: [Errno 28] No space left on device", "disk is full: 2.5 GB"),
        ("SSLError(SSLCertVerificationError(1, 'CERTIFICATE_VERIFY_FAILED')", "certificate"),
        ("ERROR: HTTP error 403 while getting x", "refused access"),
        ("ERROR: ResolutionImpossible", "contradict"),
        ("first\nERROR: something new\n", "pip failed: ERROR: something new"),
        ("", "it printed nothing"),
    ],
)
def test_a_failed_installation_has_one_sentence(output: str, words: str) -> None:
    sentence = bootstrap.why_pip_failed(output)
    assert words in sentence
    assert "\n" not in sentence


def test_the_cuda_build_is_recognised(monkeypatch: pytest.MonkeyPatch) -> None:
    def report(*requires: str) -> str:
        return json.dumps({"install": [{"metadata": {"requires_dist": list(requires)}}]})

    monkeypatch.setattr(sys, "platform", "linux")
    assert bootstrap.brings_cuda(report("filelock", "nvidia-cublas; platform_system == 'Linux'"))
    assert not bootstrap.brings_cuda(report("filelock"))
    assert not bootstrap.brings_cuda("not json")
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not bootstrap.brings_cuda(report("nvidia-cublas; platform_system == 'Linux'"))


def test_a_second_call_returns_at_once_until_a_file_changes(tmp_path: Path) -> None:
    environment = bootstrap.Environment(a_checkout(tmp_path), "test")
    assert not environment.is_ready()
    pretend(environment)
    environment.stamp.write_text(bootstrap.fingerprint(tmp_path, "test"))
    assert environment.is_ready()
    bootstrap.bootstrap(tmp_path, "test")  # installs nothing
    assert not bootstrap.Environment(tmp_path, "demo").is_ready()
    (tmp_path / "constraints.txt").write_text("torch==2.13.0\n")
    assert not environment.is_ready()


def test_an_unfinished_installation_starts_from_an_empty_environment(tmp_path: Path) -> None:
    environment = bootstrap.Environment(a_checkout(tmp_path), "test")
    pretend(environment)
    environment.made_here.touch()
    environment.stamp.write_text(bootstrap.fingerprint(tmp_path, "test"))
    environment.unfinished.touch()
    half = environment.folder / "half-written"
    half.touch()
    assert not environment.is_ready()
    environment.make()
    assert not half.exists()
    assert environment.works()


def test_an_environment_made_by_hand_is_kept(tmp_path: Path) -> None:
    environment = bootstrap.Environment(a_checkout(tmp_path), "test")
    environment.make()
    environment.made_here.unlink()  # as if a person had made it
    environment.unfinished.touch()
    mine = environment.folder / "mine"
    mine.touch()
    environment.make()
    assert mine.exists()


def test_a_folder_that_is_no_environment_is_not_removed(tmp_path: Path) -> None:
    environment = bootstrap.Environment(a_checkout(tmp_path), "test")
    environment.folder.mkdir()
    (environment.folder / "letters").touch()
    with pytest.raises(bootstrap.CannotGoOn, match="not a virtual environment"):
        environment.make()
    assert (environment.folder / "letters").exists()


def test_a_failing_pip_leaves_the_mark_and_no_stamp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = bootstrap.Environment(a_checkout(tmp_path), "test")
    environment.folder.mkdir()
    monkeypatch.setattr(environment, "pip", lambda *_: (1, "ERROR: No matching distribution found for torch"))
    with pytest.raises(bootstrap.CannotGoOn, match="has no 'torch'"):
        environment.install(2.5)
    assert environment.unfinished.exists()
    assert not environment.is_ready()


def test_pip_is_run_with_its_output_kept(tmp_path: Path) -> None:
    environment = bootstrap.Environment(a_checkout(tmp_path), "test")
    pretend(environment)
    code, output = environment.pip("--version")
    assert code == 0
    assert output.startswith("pip ")
    assert environment.log.read_text() == output


def test_a_wrong_argument_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert bootstrap.main(["everything"]) == 2
    assert "demo|test|dev" in capsys.readouterr().err


def test_the_reason_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(*_: object) -> None:
        raise bootstrap.CannotGoOn("the disk is full.")

    monkeypatch.setattr(bootstrap, "bootstrap", refuse)
    assert bootstrap.main(["test"]) == 1
    assert capsys.readouterr().err == "Cannot go on: the disk is full.\n"
