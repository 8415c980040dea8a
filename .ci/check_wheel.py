"""Build the wheel, directly and through the sdist, install it into a clean environment outside the tree, and run it.

The folders solvers, policies and scenarios are reached through symlinks in the package, which a build tool might skip.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HEAVY = {"torch", "ray", "vllm", "pyomo", "highspy", "pyscipopt", "matplotlib"}
"""What a plain install must not bring."""


def main() -> None:
    """Exit with a message at the first thing that does not hold."""
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        wheel = build_wheel(ROOT, work / "direct")
        call(sys.executable, "-m", "build", "--sdist", "--outdir", work, ROOT)
        through_sdist = build_wheel(next(work.glob("*.tar.gz")), work / "through-sdist")
        check_contents(wheel, through_sdist)
        check_install(wheel, work)
    print("wheel: complete, light, and it runs")


def build_wheel(source: Path, into: Path) -> Path:
    """The wheel that pip builds from a tree or an sdist."""
    call(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", into, source)
    return next(into.glob("*.whl"))


def check_contents(wheel: Path, through_sdist: Path) -> None:
    """Both wheels hold every file of the package that git knows."""
    listed = call("git", "ls-files", "pearl", "solvers", "policies", "scenarios", cwd=ROOT).splitlines()
    folders = {"solvers", "policies", "scenarios"}
    wanted = {f"pearl/{name}" if name.split("/")[0] in folders else name for name in listed}
    wanted -= {f"pearl/{name}" for name in folders}
    for built in (wheel, through_sdist):
        with zipfile.ZipFile(built) as archive:
            held = {name for name in archive.namelist() if not name.split("/")[0].endswith(".dist-info")}
        if missing := sorted(wanted - held):
            sys.exit(f"{built.parent.name}: not in the wheel: {', '.join(missing)}")
        if strange := sorted(name for name in held if not name.startswith("pearl/")):
            sys.exit(f"{built.parent.name}: does not belong into the wheel: {', '.join(strange)}")


def check_install(wheel: Path, work: Path) -> None:
    """With its base dependencies alone, the wheel plans a scenario that it ships."""
    call(sys.executable, "-m", "venv", work / "venv")
    python, pearl = work / "venv/bin/python", work / "venv/bin/pearl"
    call(python, "-m", "pip", "install", "--quiet", wheel)
    frozen = call(python, "-m", "pip", "freeze", cwd=work).lower()
    if heavy := HEAVY & set(re.findall(r"^([a-z0-9_-]+)", frozen, flags=re.MULTILINE)):
        sys.exit(f"a plain install brings {', '.join(sorted(heavy))}")
    home = Path(call(python, "-c", "import pearl; print(pearl.__file__)", cwd=work).strip()).parent
    if ROOT in home.parents:
        sys.exit(f"pearl was imported from the tree: {home}")
    print(call(pearl, "--version", cwd=work), end="")
    print(call(pearl, "solve", home / "scenarios" / "qwen3-8b-swe.yaml", cwd=work), end="")


def call(*command: str | Path, cwd: Path | None = None) -> str:
    """Standard output of a command that must succeed."""
    done = subprocess.run([str(part) for part in command], cwd=cwd, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(str(part) for part in command)}: exit code {done.returncode}\n{done.stdout}")
    return done.stdout


if __name__ == "__main__":
    main()
