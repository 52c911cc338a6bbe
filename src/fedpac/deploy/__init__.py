"""A real federation: a server and sites in processes of their own, on machines of their own, over Flower."""

from fedpac.errors import ConfigError

FLOWER = "1.41.0"  # the version that this was tested with; the persistent site uses parts of it that may change


def require_flower() -> None:
    """An error that names the extra, and not an ImportError."""
    try:
        import flwr  # noqa: F401
    except ImportError:
        raise ConfigError("a federation needs Flower: pip install 'fedpac[flower]'") from None


def flower_fits() -> bool:
    """Whether the installed Flower is the one that the persistent site was written for."""
    from importlib.metadata import version

    return version("flwr") == FLOWER
