"""Makes or updates the virtual environment `.venv` for `make demo`, `make test` and `make lint`.

    python scripts/bootstrap.py demo|test|dev

Says first what it is going to download and where to, and what is missing if it cannot go on. Needs nothing but the
standard library. A finished installation leaves a stamp, so that the next call returns at once; one that was cut short
leaves a mark, so that the next call starts from an empty environment.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
OLDEST_PYTHON = (3, 10)
GIGABYTE = 10**9
DISK_GB = 2.5  # the environment (1.5), pip's cache and its temporary files
DISK_GB_CUDA = 12.0

# what `make` asks for -> (extra in pyproject.toml, sections of constraints.txt, packages installed without dependencies)
TARGETS = {
    "demo": ("demo", ("run time", "hf", "demo"), False),
    "test": ("test", ("run time", "hf", "test"), True),
    "dev": ("dev", ("run time", "hf", "test", "dev"), True),
}

FAILURES = [  # the first pattern found in pip's output names the cause; the order matters
    (r"No space left on device|Errno 28", "the disk is full: {disk:g} GB are needed beside what is there."),
    (
        r"CERTIFICATE_VERIFY_FAILED|SSLError",
        "the package registry's certificate was not accepted: check the clock, the proxy and pip's `cert` setting.",
    ),
    (
        r"Temporary failure in name resolution|NewConnectionError|ConnectTimeout|ReadTimeout|Read timed out"
        r"|Connection refused|Connection reset|Network is unreachable|Max retries exceeded|ProxyError|ConnectionError",
        "the package registry cannot be reached: check the network, or pip's index and proxy settings.",
    ),
    (r"40[137] (?:Client Error|Forbidden|Unauthorized)|HTTP error 40[137]", "the package registry refused access."),
    (
        r"No matching distribution found for ([^\s;]+)|Could not find a version that satisfies the requirement (\S+)",
        "the package registry has no '{0}' for this Python and platform (tested: Python 3.11 on Linux x86-64).",
    ),
    (r"ResolutionImpossible", "the pinned versions in constraints.txt contradict what the packages ask for."),
    (r"Permission denied|Errno 13", "a file cannot be written: check who owns .venv and pip's cache."),
]


class CannotGoOn(Exception):
    """A sentence that tells the user what is missing."""


def download_sizes(constraints: str) -> dict[str, float]:
    """MB to download for each section of constraints.txt: the sum of the comments on its lines."""
    sizes: dict[str, float] = {}
    section = ""
    for line in constraints.splitlines():
        header = re.fullmatch(r"# \[(.+)\]", line.strip())
        if header:
            section = header.group(1)
            sizes[section] = 0.0
        elif "==" in line and section:
            size = re.search(r"#\s*([\d.]+)\s*$", line)
            sizes[section] += float(size.group(1)) if size else 0.0
    return sizes


def missing(version: tuple[int, ...], modules: set[str], free_bytes: int, needed_gb: float) -> list[str]:
    """What stands in the way of an installation, one sentence each."""
    sentences = []
    if version[:2] < OLDEST_PYTHON:
        found = ".".join(map(str, version[:3]))
        sentences.append(
            f"Python 3.10 or newer is needed and this is {found}: name another one with `make PYTHON=python3.11 ...`."
        )
    if not {"venv", "ensurepip"} <= modules:
        sentences.append(
            "Python's module 'venv' is missing or incomplete: install it (on Debian and Ubuntu the package python3-venv)."
        )
    if free_bytes < needed_gb * GIGABYTE:
        sentences.append(
            f"{needed_gb:g} GB of free disk space are needed and {free_bytes / GIGABYTE:.1f} GB are left: make room."
        )
    return sentences


def why_pip_failed(output: str, disk_gb: float = DISK_GB) -> str:
    """The cause of a failed installation, from pip's output, in one sentence."""
    for pattern, sentence in FAILURES:
        found = re.search(pattern, output)
        if found:
            return sentence.format(next((g for g in found.groups() if g), ""), disk=disk_gb)
    last = [line for line in output.splitlines() if line.strip()]
    return f"pip failed: {last[-1].strip() if last else 'it printed nothing.'}"


def fingerprint(root: Path, target: str) -> str:
    """A hash of everything that decides what an installation contains."""
    digest = hashlib.sha256(f"{target} {root} {sys.version}".encode())
    for name in ("pyproject.toml", "constraints.txt", "requirements/no-deps.txt", "scripts/bootstrap.py"):
        digest.update((root / name).read_bytes())
    return digest.hexdigest()


def brings_cuda(report: str) -> bool:
    """Whether pip's report on torch names the CUDA build, whose libraries are packages of several GB."""
    with contextlib.suppress(ValueError, KeyError, IndexError, TypeError):
        wanted = json.loads(report)["install"][0]["metadata"].get("requires_dist", [])
        return sys.platform == "linux" and any(re.match(r"nvidia|cuda", name) for name in wanted)
    return False


class Environment:
    """The folder `.venv` and the marks in it."""

    def __init__(self, root: Path, target: str) -> None:
        self.root = root
        self.target = target
        self.folder = root / ".venv"
        self.python = self.folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
        self.stamp = self.folder / f".quadform-{target}"
        self.made_here = self.folder / ".quadform-made"
        self.unfinished = self.folder / ".quadform-unfinished"
        self.log = self.folder / "install.log"

    def is_ready(self) -> bool:
        """Whether an installation of exactly this state has been finished."""
        return (
            self.python.exists()
            and not self.unfinished.exists()
            and self.stamp.exists()
            and self.stamp.read_text() == fingerprint(self.root, self.target)
        )

    def make(self) -> None:
        """Creates the folder where there is none that works. Removes only what an earlier call has left unfinished."""
        if self.made_here.exists() and self.unfinished.exists():
            print("The last installation did not finish: starting again from an empty .venv.", flush=True)
            shutil.rmtree(self.folder)
        elif self.folder.exists() and not self.works():
            if any(self.folder.iterdir()) and not (self.folder / "pyvenv.cfg").exists():
                raise CannotGoOn("'.venv' exists and is not a virtual environment: move it away.")
            print("The .venv that is there does not work: making it again.", flush=True)
            shutil.rmtree(self.folder)
        if not self.folder.exists():
            done = subprocess.run([sys.executable, "-m", "venv", str(self.folder)], capture_output=True, text=True)
            if done.returncode:
                raise CannotGoOn(f"no virtual environment could be made: {(done.stdout + done.stderr).strip()}")
            self.made_here.touch()

    def works(self) -> bool:
        """Whether the environment has a Python of a good version with pip in it."""
        check = f"import sys, pip; sys.exit(sys.version_info < {OLDEST_PYTHON})"
        try:
            return subprocess.run([str(self.python), "-c", check], capture_output=True).returncode == 0
        except OSError:
            return False

    def pip(self, *arguments: str) -> tuple[int, str]:
        """Runs pip, shows its larger downloads as they start, and returns its exit code and output."""
        command = [str(self.python), "-m", "pip", "--disable-pip-version-check", "--no-input", *arguments]
        lines = []
        pipe, joined = subprocess.PIPE, subprocess.STDOUT
        start = partial(subprocess.Popen, cwd=self.root, stdout=pipe, stderr=joined, text=True, errors="replace")
        with self.log.open("a") as log, start(command) as process:
            assert process.stdout is not None
            for line in process.stdout:
                lines.append(line)
                log.write(line)
                if re.search(r"Downloading \S+ \([\d.]+ [MG]B\)|^Installing collected", line):
                    print("  " + line.strip()[:150], flush=True)
        return process.returncode, "".join(lines)

    def install(self, disk_gb: float) -> None:
        """Installs the package in place, with the extra of the target and the pinned versions."""
        extra, _, without_dependencies = TARGETS[self.target]
        self.unfinished.touch()
        steps = [["install", "-c", "constraints.txt", "-e", f".[{extra}]"]]
        if without_dependencies:
            steps.append(["install", "--no-deps", "-r", "requirements/no-deps.txt"])
        for step in steps:
            code, output = self.pip(*step)
            if code:
                raise CannotGoOn(f"{why_pip_failed(output, disk_gb)} (pip's output: {self.log})")
        self.unfinished.unlink()
        self.stamp.write_text(fingerprint(self.root, self.target))


def announce(root: Path, target: str, folder: Path) -> None:
    """Prints what is about to be downloaded, and where to."""
    _, sections, without_dependencies = TARGETS[target]
    sizes = download_sizes((root / "constraints.txt").read_text())
    if without_dependencies:
        extra = download_sizes("# [more]\n" + (root / "requirements/no-deps.txt").read_text())
        sizes[sections[-1]] += extra["more"]
    parts = ", ".join(f"{name} {sizes[name]:.0f} MB" for name in sections)
    total = sum(sizes[name] for name in sections)
    print(f"About to download {total:.0f} MB of Python packages ({parts}) with pip,", flush=True)
    print(f"less what pip has in its cache, into {folder} (about 1.5 GB on disk).", flush=True)


def free_disk(root: Path) -> int:
    """Free bytes where the environment goes or, if less, where pip unpacks."""
    return min(shutil.disk_usage(path).free for path in (root, tempfile.gettempdir()))


def bootstrap(root: Path, target: str) -> None:
    """Leaves `.venv` with everything that the target needs, or raises `CannotGoOn`."""
    environment = Environment(root, target)
    if environment.is_ready():
        return
    announce(root, target, environment.folder)
    modules = {name for name in ("venv", "ensurepip") if importlib.util.find_spec(name)}
    new = not any((environment.folder / f".quadform-{name}").exists() for name in TARGETS)
    sentences = missing(sys.version_info[:3], modules, free_disk(root), DISK_GB if new else 0.3)
    if sentences:
        raise CannotGoOn(" ".join(sentences))
    environment.make()
    disk_gb = DISK_GB
    if new:
        asked = ["install", "--dry-run", "--no-deps", "--quiet", "--report", "-", "-c", "constraints.txt", "torch"]
        code, output = environment.pip(*asked)
        if code and "no such option" not in output:
            raise CannotGoOn(f"{why_pip_failed(output)} (pip's output: {environment.log})")
        if brings_cuda(output[output.find("{") :]):
            disk_gb = DISK_GB_CUDA
            print(
                "Here pip finds torch's CUDA build, which brings several GB of NVIDIA's libraries. For the small build\n"
                "stop now and set PIP_EXTRA_INDEX_URL to the index of CPU builds that PyTorch's installation page names.",
                flush=True,
            )
            sentences = missing(sys.version_info[:3], modules, free_disk(root), disk_gb)
            if sentences:
                raise CannotGoOn(" ".join(sentences))
    environment.install(disk_gb)
    print("Installed.", flush=True)


@contextlib.contextmanager
def one_at_a_time(path: Path) -> Iterator[None]:
    """Lets a second call wait for the first, where the system has file locks."""
    with path.open() as handle:
        try:
            import fcntl
        except ImportError:
            yield
            return
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def main(arguments: list[str]) -> int:
    """Runs the command; returns its exit code."""
    if len(arguments) != 1 or arguments[0] not in TARGETS:
        print(f"usage: bootstrap.py {'|'.join(TARGETS)}", file=sys.stderr)
        return 2
    try:
        with one_at_a_time(Path(__file__)):
            bootstrap(ROOT, arguments[0])
    except CannotGoOn as reason:
        print(f"Cannot go on: {reason}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"Cannot go on: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nInterrupted: the next call starts this step again.", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
