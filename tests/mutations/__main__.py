"""python -m tests.mutations: applies each mutation to a copy of the package and runs the law that must catch it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import quadform
from tests.mutations.catalogue import MUTATIONS, Mutation

PACKAGE = Path(quadform.__file__).parent
SEEDS = 15
PROGRAM = """
import sys, torch, quadform
from pathlib import Path
assert Path(quadform.__file__).is_relative_to(sys.argv[1]), quadform.__file__
torch.set_num_threads(1)
from quadform.laws import LAWS, check
law, subject = sys.argv[2:4]
seen = 0
for seed in range(int(sys.argv[4])):
    for dtype in LAWS[law].dtypes:
        for outcome in check(law, subject, seed, dtype):
            seen += 1
            if not outcome.ok:
                print(f"{outcome.form} {outcome.dtype}: {outcome.error:.2g}; {outcome.witness}")
                sys.exit(3)
sys.exit(0 if seen else 4)
"""


def run(where: Path, law: str, subject: str) -> tuple[int, str]:
    """(3 where a law is broken, 0 where it holds, 4 where no case falls under it; the first line of the witness)."""
    environment = {**os.environ, "PYTHONPATH": str(where), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", PROGRAM, str(where), law, subject, str(SEEDS)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    said = (done.stdout or done.stderr).strip().splitlines()
    return done.returncode, said[-1] if said else ""


def mutate(mutation: Mutation, where: Path) -> None:
    """A copy of the package with the mutation in it."""
    shutil.copytree(PACKAGE, where / "quadform", ignore=shutil.ignore_patterns("__pycache__"))
    path = where / "quadform" / mutation.file
    text = path.read_text()
    if text.count(mutation.old) != 1:
        raise SystemExit(
            f"{mutation.file}: {text.count(mutation.old)} places to mutate for {mutation.name!r}, expected 1"
        )
    path.write_text(text.replace(mutation.old, mutation.new))


def caught(mutation: Mutation) -> tuple[bool, str]:
    """Whether the law catches the mutation, and what it says."""
    with tempfile.TemporaryDirectory() as folder:
        mutate(mutation, Path(folder))
        code, said = run(Path(folder), mutation.law, mutation.subject)
    return code == 3, said


def unharmed() -> list[str]:
    """The laws that fail without any mutation: must be none, else a catch shows nothing."""
    pairs = sorted({(m.law, m.subject) for m in MUTATIONS})
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda pair: run(PACKAGE.parent, *pair), pairs))
    return [f"{law} / {subject}: {said}" for (law, subject), (code, said) in zip(pairs, results, strict=True) if code]


def main() -> int:
    """Prints mutation, law, and what the law found; 1 where one survives."""
    broken = unharmed()
    for line in broken:
        print(f"fails without a mutation: {line}")
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(caught, MUTATIONS))
    for mutation, (found, said) in zip(MUTATIONS, results, strict=True):
        verdict = "caught by" if found else "SURVIVES"
        print(f"{mutation.kind:<7}{mutation.name:<64}{verdict} {mutation.law} / {mutation.subject}")
        print(f"       {said[:150]}")
    survivors = sum(not found for found, _ in results)
    print(f"{len(results)} mutations, {len(results) - survivors} caught, {survivors} survive")
    return 1 if broken or survivors else 0


if __name__ == "__main__":
    sys.exit(main())
