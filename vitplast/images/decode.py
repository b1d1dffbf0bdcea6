"""From a picture of any kind to a square RGB array: transparency on white, grey repeated, shorter side, centre crop."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from vitplast.errors import IntegrityError

if TYPE_CHECKING:
    from PIL import Image

#: What reading a broken or missing picture raises (Pillow's bomb error is added in `square_array`).
BROKEN = (OSError, SyntaxError, ValueError, EOFError, IndexError, KeyError, struct.error, zlib.error)


def open_picture(path: Path) -> Image.Image:
    """The picture in a file; the file is read whole and closed, so that a broken one leaves no open handle."""
    from PIL import Image

    if not (content := path.read_bytes()):
        raise OSError("the file is empty")
    return Image.open(io.BytesIO(content))


def square_array(read: Callable[[], Image.Image], where: str, size: int) -> np.ndarray:
    """The picture that `read()` opens as uint8 (size, size, 3).

    Raises
    ------
    IntegrityError
        If it cannot be opened or decoded (missing, empty, cut off, not a picture); names `where`.
    """
    return _array(lambda: to_square(read(), size), where)


def whole_array(read: Callable[[], Image.Image], where: str) -> np.ndarray:
    """The picture that `read()` opens as uint8 (H, W, 3) at its own size.

    Raises
    ------
    IntegrityError
        As `square_array`.
    """
    return _array(lambda: to_rgb(read()), where)


def _array(make: Callable[[], Image.Image], where: str) -> np.ndarray:
    from PIL import Image, UnidentifiedImageError

    try:
        return np.asarray(make())
    except UnidentifiedImageError as error:
        raise IntegrityError(f"{where} cannot be read as an image: it is of no known kind") from error
    except (*BROKEN, Image.DecompressionBombError) as error:
        raise IntegrityError(f"{where} cannot be read as an image: {error or type(error).__name__}") from error


def to_square(image: Image.Image, size: int) -> Image.Image:
    """Shorter side to `size` (bilinear with antialias), then the middle square: torchvision's Resize, CenterCrop."""
    from PIL import Image

    image = to_rgb(image)
    width, height = image.size
    short, long = min(width, height), max(width, height)
    if short != size:
        longer = int(size * long / short)
        image = image.resize((size, longer) if width <= height else (longer, size), Image.Resampling.BILINEAR)
    width, height = image.size
    left, top = round((width - size) / 2), round((height - size) / 2)
    return image if (width, height) == (size, size) else image.crop((left, top, left + size, top + size))


def on_white_square(image: Image.Image) -> Image.Image:
    """The whole picture in RGB, in the middle of a white square with its longer side."""
    from PIL import Image

    image = to_rgb(image)
    side = max(image.size)
    square = Image.new("RGB", (side, side), "white")
    square.paste(image, ((side - image.width) // 2, (side - image.height) // 2))
    return square


def to_rgb(image: Image.Image) -> Image.Image:
    """RGB with 8 bits: transparent parts on white, grey repeated, 16-bit grey divided by 256."""
    from PIL import Image

    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    if image.mode.startswith("I;16"):
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert("RGB")
    if image.mode in ("I", "F"):
        raise ValueError(f"pixels of mode {image.mode!r} have no fixed range, store 8 or 16 bits")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, (255, 255, 255, 255))
        return Image.alpha_composite(white, image).convert("RGB")
    return image.convert("RGB")
