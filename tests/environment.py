"""A Python with some of the installed libraries and no others: what a new environment would have."""

import os
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path


def needed(*requirements: str) -> set[str]:
    """The distributions that these need, themselves included; markers of extras that were not asked for are left."""
    found: set[str] = set()
    waiting = list(requirements)
    while waiting:
        name = re.split(r"[^A-Za-z0-9_.-]", waiting.pop())[0].lower().replace("_", "-")
        if name in found:
            continue
        try:
            asks = distribution(name).requires or []
        except PackageNotFoundError:  # of another system
            continue
        found.add(name)
        waiting += [text for text in asks if "extra ==" not in text]
    return found


def lend(folder: Path, *requirements: str) -> Path:
    """A folder with links to what these requirements need, for PYTHONPATH."""
    folder.mkdir()
    for name in needed(*requirements):
        about = distribution(name)
        tops = {file.parts[0] for file in about.files or [] if file.parts[0] not in ("..", "__pycache__")}
        for top in tops:
            if not (folder / top).exists():
                (folder / top).symlink_to(Path(str(about.locate_file(top))).resolve())
    return folder


def run_in(paths: list[Path], *arguments: object, cwd: Path) -> str:
    """Python without site-packages: only these folders and the standard library."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    environment["PYTHONPATH"] = os.pathsep.join(map(str, paths))
    done = subprocess.run(
        [sys.executable, "-S", *map(str, arguments)], cwd=cwd, env=environment, capture_output=True, text=True,
        timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
