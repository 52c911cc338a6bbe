"""The command line. Torch and everything that needs it is imported inside the commands: `fedpac --help` is instant.

A module for each kind of command; they are listed in the order in which they are imported here.
"""

from fedpac.cli.app import app, main

from fedpac.cli import running, results, catalogue, models  # isort: skip

__all__ = ["app", "catalogue", "main", "models", "results", "running"]
