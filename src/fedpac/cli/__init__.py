"""The command line. Torch and everything that needs it is imported inside the commands: `fedpac --help` is instant.

A module for each command; they are listed in the order in which they are imported here.
"""

# isort: off
from fedpac.cli import (
    demo,
    run,
    resume,
    tune,
    compare,
    report,
    watch,
    export,
    predict,
    federation,
    methods,
    models,
    data,
    check,
    reproduce,
)

# isort: on
from fedpac.cli.app import app, main

__all__ = [
    "app",
    "check",
    "compare",
    "data",
    "demo",
    "export",
    "federation",
    "main",
    "methods",
    "models",
    "predict",
    "report",
    "reproduce",
    "resume",
    "run",
    "tune",
    "watch",
]
