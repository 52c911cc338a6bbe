"""What may stand between a method and the wire, at both ends: compression, noise and encryption."""

from fedpac.mods.base import Context, Mod, Passage, Way
from fedpac.mods.ckks import Ckks
from fedpac.mods.compression import Float16, TopK

__all__ = ["Ckks", "Context", "Float16", "Mod", "Passage", "TopK", "Way"]
