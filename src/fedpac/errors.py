"""Errors that a user can act on: each names the thing, what is wrong with it and what would be right."""

from collections.abc import Iterable
from difflib import get_close_matches


class FedpacError(Exception):
    """A mistake in what the user gave (config, data, files). The command line shows it without a traceback."""


class ConfigError(FedpacError):
    """A config key or value that cannot be used."""


class DataError(FedpacError):
    """A data set or client data that is missing, damaged or unusable."""


class MessageError(FedpacError):
    """Bytes that are not a valid message, or a message without a part that was promised."""


class CheckpointError(FedpacError):
    """A checkpoint that is damaged or belongs to another run."""


class RunError(FedpacError):
    """A run folder that cannot be written, read or continued."""


class RunInUseError(RunError):
    """A run folder that another process is writing."""


class NotEvaluatedError(RunError):
    """A run that has begun, but has no result to show yet."""


class ModelError(FedpacError):
    """A saved model that is missing, damaged or not what it claims to be."""


class TrainingError(FedpacError):
    """Training that left the numbers: says which client and which round."""


def unknown(kind: str, name: str, known: Iterable[str]) -> str:
    """The text for a name that does not exist: the nearest valid one first, then all of them."""
    known = sorted(known)
    near = get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f" Did you mean '{near[0]}'?" if near else ""
    return f"there is no {kind} '{name}'.{hint} " + (f"Known: {', '.join(known)}." if known else "There are none here.")
