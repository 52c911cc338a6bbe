"""Images of any size and colour, brought to one form."""

from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from fedpac.data.untrusted import image_bytes, read_image
from fedpac.errors import DataError

Side: TypeAlias = Annotated[int, Field(ge=1, le=4096)]
Fit: TypeAlias = Literal["resize", "crop"]
Colour: TypeAlias = Literal["grey", "colour"]
MODES: dict[Colour | None, str | None] = {"grey": "L", "colour": "RGB", None: None}  # Pillow's names
IMAGES = (".png", ".jpg", ".jpeg")


class Pictures(BaseModel):
    """What is done to every image.

    size     (height, width); unset, all images must have one size already
    fit      'resize' changes the proportions where they differ; 'crop' keeps them, and the middle of the image
    colour   'grey' or 'colour'; unset, colour if any image has it
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    size: tuple[Side, Side] | None = None
    fit: Fit = "resize"
    colour: Colour | None = None

    def read(self, file: Path) -> NDArray[np.uint8]:
        """A PNG or JPEG as (height, width, channels)."""
        return self.formed(read_image(file, MODES[self.colour]))

    def formed(self, pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Pixels (height, width) or (height, width, 3) in this form, (height, width, channels)."""
        from PIL import Image, ImageOps

        if self.size is not None and pixels.shape[:2] != self.size:
            image, wanted = Image.fromarray(pixels), (self.size[1], self.size[0])
            smooth = Image.Resampling.BILINEAR  # which averages over all pixels that become one
            image = ImageOps.fit(image, wanted, smooth) if self.fit == "crop" else image.resize(wanted, smooth)
            pixels = np.array(image)
        return np.atleast_3d(pixels)

    def of(self, image: object, who: str) -> NDArray[np.uint8]:
        """The same for an image in memory: Pillow's, or an array of bytes."""
        from PIL import Image

        if isinstance(image, Image.Image):
            image = image_bytes(image, MODES[self.colour])
        if not isinstance(image, np.ndarray) or image.dtype != np.uint8 or image.ndim not in (2, 3):
            raise DataError(f"{who}: expected a Pillow image, or an array of bytes (height, width, channels)")
        return self.formed(image)


AS_THEY_ARE = Pictures()


def image_files(folder: Path) -> list[Path]:
    """The images in the folder; hidden files, which some systems leave beside images, are none."""
    return sorted(f for f in folder.iterdir() if f.suffix.lower() in IMAGES and not f.name.startswith("."))


def pictures_of(size: int | tuple[int, int] | None, fit: Fit | None, colour: Colour | None) -> Pictures:
    """From the keys of a config."""
    both = (size, size) if isinstance(size, int) else size
    return Pictures(size=both, fit=fit or "resize", colour=colour)
