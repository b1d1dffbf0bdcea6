"""Sets in Debian packages: `emoji`, `fashion_mnist`, `stamps`. `root` stands for the share folder, e.g. in tests."""

from __future__ import annotations

import gzip
import re
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from vitplast.errors import IntegrityError, MissingDependencyError
from vitplast.images.decode import on_white_square, open_picture
from vitplast.images.folders import system_files
from vitplast.images.packaged import from_arrays
from vitplast.images.pixel_cache import file_stamp
from vitplast.images.sets import Records

if TYPE_CHECKING:
    from PIL import Image

EMOJI_PACKAGES = ("fonts-noto-color-emoji", "unicode-data")
EMOJI_FILES = ("fonts/truetype/noto/NotoColorEmoji.ttf", "unicode/emoji/emoji-test.txt")
#: The size of the pictures in that font; it holds no other.
EMOJI_POINTS = 109
SKIN_TONES = {f"{code:X}" for code in range(0x1F3FB, 0x1F400)}
#: Man, woman, person; and what only joins or varies: presentation, joiner, female and male sign.
PERSONS, JOINERS = {"1F468", "1F469", "1F9D1"}, {"FE0F", "200D", "2640", "2642"}
#: Region codes whose flag is that of another region, and the family that is drawn as one of the families.
SAME_FLAG = {"CP": "FR", "MF": "FR", "BV": "NO", "SJ": "NO", "UM": "US", "EA": "ES", "HM": "AU", "IO": "DG"}
SAME_PICTURE = {"1F46A": "person-person-1F466"}

FASHION_PACKAGES = ("dataset-fashion-mnist",)
FASHION_FILES = tuple(
    f"datasets/fashion-mnist/{part}-{kind}-ubyte.gz"
    for part in ("train", "t10k")
    for kind in ("images-idx3", "labels-idx1")
)
FASHION_CLASSES = ("T-shirt/top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag",
                   "ankle boot")  # fmt: skip

STAMPS_PACKAGES = ("tuxpaint-stamps-default",)
STAMPS_GROUPS = ("animals", "clothes", "food", "household", "plants", "symbols", "town", "vehicles")


def load_emoji(*, root: Path | None = None, download: bool = False) -> Records:
    """Colour emoji of the Noto font, without skin tones; the classes are the nine groups of Unicode's list.

    Emoji that differ only in the sex of the person, or that look the same (some flags), are one unit and stay in one
    split.
    """
    from PIL import features

    font_path, list_path = system_files("emoji", EMOJI_PACKAGES, EMOJI_FILES, root)
    if not features.check("raqm"):
        raise MissingDependencyError(
            "image set 'emoji' needs a Pillow with Raqm, which joins code points to one picture; the wheels have it: "
            "pip install --force-reinstall pillow"
        )
    found = parse_emoji(list_path.read_text(encoding="utf-8"))
    if not found:
        raise IntegrityError(f"{list_path} lists no emoji")
    classes = tuple(sorted({group for _, group in found}))
    draw = EmojiFont(font_path)
    return Records(
        ids=["-".join(codes) for codes, _ in found],
        read=lambda row: draw("".join(chr(int(code, 16)) for code in found[row][0])),
        where=lambda row: f"emoji {'-'.join(found[row][0])} of {font_path}",
        classes=classes,
        labels=np.array([classes.index(group) for _, group in found], dtype=np.int64),
        units=[emoji_unit(codes) for codes, _ in found],
        together=True,
        stamp=lambda row: file_stamp(font_path),
        sources=(font_path, list_path),
    )


def parse_emoji(text: str) -> list[tuple[list[str], str]]:
    """Code points and group of every fully qualified emoji of Unicode's list, those with a skin tone left out."""
    found, group = [], ""
    for line in text.splitlines():
        if line.startswith("# group:"):
            group = line.partition(":")[2].strip()
        elif match := re.match(r"([0-9A-F ]+?)\s*;\s*fully-qualified\b", line):
            codes = match[1].split()
            if not SKIN_TONES & set(codes):
                found.append((codes, group))
    return found


def emoji_unit(codes: list[str]) -> str:
    """A name that emoji share which differ only in the sex of persons, or have the same picture."""
    letters = "".join(chr(int(code, 16) - 0x1F1E6 + ord("A")) for code in codes if "1F1E6" <= code <= "1F1FF")
    if len(letters) == 2:
        return f"flag {SAME_FLAG.get(letters, letters)}"
    unit = "-".join("person" if code in PERSONS else code for code in codes if code not in JOINERS)
    return SAME_PICTURE.get(unit, unit)


class EmojiFont:
    """Draws text with the colours of a font on a white square."""

    def __init__(self, path: Path) -> None:
        self.path, self._font = path, None

    def __call__(self, text: str) -> Image.Image:
        from PIL import Image, ImageDraw, ImageFont

        if self._font is None:
            self._font = ImageFont.truetype(str(self.path), EMOJI_POINTS, layout_engine=ImageFont.Layout.RAQM)
        left, top, right, bottom = self._font.getbbox(text)
        side = max(1, int(right - left), int(bottom - top))
        image = Image.new("RGB", (side, side), "white")
        corner = ((side - (right - left)) // 2 - left, (side - (bottom - top)) // 2 - top)
        ImageDraw.Draw(image).text(corner, text, font=self._font, fill="black", embedded_color=True)
        return image


def load_fashion_mnist(*, root: Path | None = None, download: bool = False) -> Records:
    """70,000 grey pictures of clothes, 28 x 28, ten classes; the official test split of 10,000."""
    paths = system_files("fashion_mnist", FASHION_PACKAGES, FASHION_FILES, root)
    arrays, problems = [], []
    for path in paths:
        try:
            arrays.append(read_idx(path))
        except IntegrityError as error:
            problems.append(str(error))
    if problems:
        raise IntegrityError("; ".join(problems))
    images, labels = arrays[0::2], arrays[1::2]
    for (x, y), path in zip(zip(images, labels, strict=True), paths[0::2], strict=True):
        if x.ndim != 3 or y.ndim != 1 or len(x) != len(y):
            raise IntegrityError(f"{path} holds images of shape {x.shape} beside labels of shape {y.shape}")
        if y.size and y.max() >= len(FASHION_CLASSES):
            raise IntegrityError(f"the labels beside {path} go up to {y.max()}, expected 0..{len(FASHION_CLASSES) - 1}")
    n_train, n = len(images[0]), len(images[0]) + len(images[1])
    given = {"pool": np.arange(n_train), "test": np.arange(n_train, n)}
    pixels, targets = np.concatenate(images), np.concatenate(labels).astype(np.int64)
    return from_arrays(pixels, targets, FASHION_CLASSES, paths[0].parent, given, tuple(paths))


def read_idx(path: Path) -> np.ndarray:
    """A compressed IDX file of bytes as an array.

    Raises
    ------
    IntegrityError
        If it is cut off, damaged, too long or of another kind; names the file.
    """
    try:
        data = gzip.decompress(path.read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        raise IntegrityError(f"{path} cannot be unpacked: {error or type(error).__name__}") from error
    if len(data) < 4 or data[:3] != b"\x00\x00\x08" or len(data) < 4 + 4 * data[3]:
        raise IntegrityError(f"{path} is not an IDX file of bytes")
    start = 4 + 4 * data[3]
    shape = tuple(int(n) for n in np.frombuffer(data[4:start], dtype=">u4"))
    if len(data) - start != int(np.prod(shape, dtype=object)):
        raise IntegrityError(f"{path} holds {len(data) - start} bytes, its header says {shape}")
    return np.frombuffer(data, dtype=np.uint8, offset=start).reshape(shape)


def load_stamps(*, root: Path | None = None, download: bool = False) -> Records:
    """Stamps of Tux Paint on white squares: eight groups of things, cartoons left out; classes are the groups.

    A stamp and its mirrored version are one unit and stay in one split.
    """
    (folder,) = system_files("stamps", STAMPS_PACKAGES, ("tuxpaint/stamps",), root)
    paths = sorted(
        path for group in STAMPS_GROUPS for path in (folder / group).rglob("*.png")
        if "cartoon" not in path.relative_to(folder).as_posix()
    )  # fmt: skip
    if not paths:
        raise IntegrityError(f"{folder} holds no PNG below {', '.join(STAMPS_GROUPS)}")
    ids = [path.relative_to(folder).as_posix() for path in paths]
    return Records(
        ids=ids,
        read=lambda row: on_white_square(open_picture(paths[row])),
        where=lambda row: str(paths[row]),
        classes=STAMPS_GROUPS,
        labels=np.array([STAMPS_GROUPS.index(i.partition("/")[0]) for i in ids], dtype=np.int64),
        units=[re.sub(r"(_mirror|_flip)+(?=\.png$)", "", i) for i in ids],
        together=True,
        stamp=lambda row: file_stamp(paths[row]),
        sources=tuple(sorted({path.parent for path in paths})),
    )
