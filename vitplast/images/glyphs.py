"""Letters by script, drawn from the Noto fonts: `glyphs`. `root` stands for the share folder, e.g. in tests."""

from __future__ import annotations

import unicodedata
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from vitplast.errors import IntegrityError
from vitplast.images.folders import system_files
from vitplast.images.pixel_cache import file_stamp
from vitplast.images.sets import Records
from vitplast.images.splits import rank

if TYPE_CHECKING:
    from PIL import Image

GLYPH_PACKAGES = ("fonts-noto-core",)
#: First and last code point of each script's block (of Latin: to the end of Extended-B).
SCRIPTS = {
    "Arabic": (0x600, 0x6FF), "Armenian": (0x530, 0x58F), "Bengali": (0x980, 0x9FF), "Cyrillic": (0x400, 0x4FF),
    "Devanagari": (0x900, 0x97F), "Ethiopic": (0x1200, 0x137F), "Georgian": (0x10A0, 0x10FF),
    "Greek": (0x370, 0x3FF), "Gujarati": (0xA80, 0xAFF), "Gurmukhi": (0xA00, 0xA7F), "Hebrew": (0x590, 0x5FF),
    "Kannada": (0xC80, 0xCFF), "Khmer": (0x1780, 0x17FF), "Lao": (0xE80, 0xEFF), "Latin": (0x41, 0x24F),
    "Malayalam": (0xD00, 0xD7F), "Myanmar": (0x1000, 0x109F), "Sinhala": (0xD80, 0xDFF), "Tamil": (0xB80, 0xBFF),
    "Telugu": (0xC00, 0xC7F), "Thai": (0xE00, 0xE7F),
}  # fmt: skip
#: What stands for the script in the names of its two fonts; one whose serif font is called otherwise is below.
FONT_PARTS = {"Latin": "", "Greek": "", "Cyrillic": ""}
SERIF_FONTS = {"Arabic": "NotoNaskhArabic"}
STYLES = ("sans", "serif")
#: Letters of a script at most; size of the font and least side of the picture in pixels.
MOST_LETTERS, POINTS, SIDE, MARGIN = 60, 64, 96, 8
#: No character, so every font draws its sign for what it lacks.
NO_CHARACTER = chr(0x10FFFF)


def font_files(script: str) -> tuple[str, str]:
    """Files of the upright sans and serif fonts of a script, below the share folder."""
    part = FONT_PARTS.get(script, script)
    names = (f"NotoSans{part}", SERIF_FONTS.get(script, f"NotoSerif{part}"))
    return tuple(f"fonts/truetype/noto/{name}-Regular.ttf" for name in names)


def letters(script: str) -> list[str]:
    """The letters of a script's block that are no composition of others, so none that differ by an accent alone."""
    first, last = SCRIPTS[script]
    return [
        char for char in map(chr, range(first, last + 1))
        if unicodedata.category(char) in ("Lu", "Ll", "Lo") and not unicodedata.decomposition(char)
        and script.upper() in unicodedata.name(char)
    ]  # fmt: skip


def load_glyphs(*, root: Path | None = None, download: bool = False) -> Records:
    """Black letters on white, each from a sans and a serif font; the class is the script.

    At most 60 letters a script, chosen by hash. A letter, its capital and both its fonts are one unit, so letters of
    the test split are not in the pool. Letters that a font lacks, or that look in one font exactly as a letter of
    another script (A of Latin, Greek and Cyrillic), are left out.
    """
    names = [name for script in SCRIPTS for name in font_files(script)]
    found = dict(zip(names, system_files("glyphs", GLYPH_PACKAGES, tuple(names), root), strict=True))
    fonts = {(script, style): found[name] for script in SCRIPTS
             for style, name in zip(STYLES, font_files(script), strict=True)}  # fmt: skip
    rows = [(script, char, style) for script, chars in drawable(fonts).items() for char in chars for style in STYLES]
    if not rows:
        raise IntegrityError(f"the fonts in {found[names[0]].parent} draw no letters")
    classes = tuple(SCRIPTS)
    return Records(
        ids=[f"{ord(char):04X}-{style}" for _, char, style in rows],
        read=lambda row: square(rows[row][1], fonts[rows[row][0], rows[row][2]]),
        where=lambda row: f"U+{ord(rows[row][1]):04X} of {fonts[rows[row][0], rows[row][2]]}",
        classes=classes,
        labels=np.array([classes.index(script) for script, _, _ in rows], dtype=np.int64),
        units=[f"{script} {char.casefold()}" for script, char, _ in rows],
        together=True,
        stamp=lambda row: file_stamp(fonts[rows[row][0], rows[row][2]]),
        sources=tuple(dict.fromkeys(fonts.values())),
    )


def drawable(fonts: dict[tuple[str, str], Path]) -> dict[str, list[str]]:
    """The letters of each script that are taken, in the order of their hash."""
    seen: dict[tuple, set[str]] = defaultdict(set)
    drawn: dict[str, dict[str, list[tuple]]] = {}
    for script in SCRIPTS:
        own = [fonts[script, style] for style in STYLES]
        missing = [ink(NO_CHARACTER, path) for path in own]
        shapes = {char: [ink(char, path) for path in own] for char in letters(script)}
        drawn[script] = {
            char: shape for char, shape in shapes.items()
            if all(s[1] and s != m for s, m in zip(shape, missing, strict=True))
        }  # fmt: skip
        for shape in drawn[script].values():
            for one in shape:
                seen[one].add(script)
    return {
        script: sorted(
            (char for char, shape in shapes.items() if all(len(seen[one]) == 1 for one in shape)),
            key=lambda char: rank("glyphs", char),
        )[:MOST_LETTERS]
        for script, shapes in drawn.items()
    }


def ink(char: str, path: Path) -> tuple[tuple[int, int], bytes]:
    """Width and height of a letter's ink, and its grey values: two letters that look the same have the same."""
    mask = font(path).getmask(char)
    return mask.size, bytes(mask) if any(mask) else b""


def square(char: str, path: Path) -> Image.Image:
    """The letter in the middle of a white square."""
    from PIL import Image, ImageDraw

    own = font(path)
    left, top, right, bottom = own.getbbox(char)
    side = max(SIDE, int(max(right - left, bottom - top)) + 2 * MARGIN)
    image = Image.new("RGB", (side, side), "white")
    corner = ((side - (right - left)) // 2 - left, (side - (bottom - top)) // 2 - top)
    ImageDraw.Draw(image).text(corner, char, font=own, fill="black")
    return image


@cache
def font(path: Path):
    """The font in a file, opened once, drawn without ligatures or shaping so that it looks the same everywhere."""
    from PIL import ImageFont

    return ImageFont.truetype(str(path), POINTS, layout_engine=ImageFont.Layout.BASIC)
