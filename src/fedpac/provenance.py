"""Where numbers come from: command, commit, versions, kernels and machine."""

import os
import platform
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedpac import native
from fedpac.version import __version__

SERVER_APP = "flwr-serverapp"  # Flower starts it for 'flwr run', with a token among its arguments


def provenance() -> dict[str, Any]:
    return {
        "command": _command(),
        "commit": _commit(),
        "versions": {
            "fedpac": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
        },
        "kernels": "native" if native.available() else f"torch ({native.reason()})",
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
    }


def _command() -> str:
    program = Path(sys.argv[0])
    if program.name == SERVER_APP:
        return "flwr run"
    module = ["python", "-m", program.parent.name] if program.name == "__main__.py" else [program.name]
    return shlex.join([*module, *sys.argv[1:]])


def _commit() -> str:
    """The checkout the code was run from; '+' marks changes to the code that were not committed."""

    def git(*arguments: str) -> str:
        command = ["git", *arguments]
        return subprocess.run(
            command, cwd=Path(__file__).parent, capture_output=True, text=True, timeout=10, check=True
        ).stdout.strip()

    try:
        return git("rev-parse", "--short=12", "HEAD") + ("+" if git("status", "--porcelain", ".") else "")
    except (OSError, subprocess.SubprocessError):
        return "unknown"
