"""Models that live without the run and its data: one folder each, see card.py."""

from fedpac.bundles.reading import Model, is_bundle, load_model, read_card
from fedpac.bundles.writing import Origin, check_free, write_bundle

__all__ = ["Model", "Origin", "check_free", "is_bundle", "load_model", "read_card", "write_bundle"]
