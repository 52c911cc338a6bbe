"""The two apps of a Flower project. All that is particular to a run stands in pyproject.toml."""

from fedpac.deploy.apps import client_app, server_app

__all__ = ["client_app", "server_app"]
