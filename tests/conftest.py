"""Puts this folder on the import path, so that tests can say `from helpers import ...`."""

import pytest
import torch

from fedpac import cli

torch.set_num_threads(1)  # sums in one order, and no fight with the other test workers for cores


@pytest.fixture
def fedpac(monkeypatch, tmp_path, capfd):
    """Runs a command in an empty folder; returns (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDPAC_DATA", str(tmp_path / "data"))

    def command(*arguments: object) -> tuple[int, str, str]:
        capfd.readouterr()
        with pytest.raises(SystemExit) as exit:
            cli.main([str(a) for a in arguments])
        printed = capfd.readouterr()
        return int(exit.value.code or 0), printed.out, printed.err

    return command
