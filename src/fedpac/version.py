"""Which release this is; pyproject.toml reads it here."""

__version__ = "0.1.0"
