"""Icons by category, trained on some icon themes and tested on another: `icons`. `root` stands for the share folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from vitplast.errors import IntegrityError
from vitplast.images.clipart import without_copies
from vitplast.images.decode import on_white_square, open_picture
from vitplast.images.folders import system_files
from vitplast.images.pixel_cache import file_stamp
from vitplast.images.sets import Records

ICON_PACKAGES = ("elementary-xfce-icon-theme", "faenza-icon-theme", "mate-icon-theme", "oxygen-icon-theme")
#: Folder of the 48-pixel icons of a category in each theme; the last theme is the test split.
ICON_THEMES = {
    "oxygen": "oxygen/base/48x48/{}",
    "Faenza": "Faenza/{}/48",
    "mate": "mate/48x48/{}",
    "elementary-xfce": "elementary-xfce/{}/48",
}
TEST_THEME = "elementary-xfce"
#: Categories of the icon naming specification of freedesktop.org with enough icons in all four themes.
ICON_CLASSES = ("actions", "apps", "devices", "mimetypes", "places", "status")
#: What elementary-xfce calls a category.
OTHER_NAMES = {("elementary-xfce", "mimetypes"): "mimes"}


def load_icons(*, root: Path | None = None, download: bool = False) -> Records:
    """Icons of 48 pixels in six categories: three themes are the pool, a fourth, by other artists, is the test split.

    All icons have the same size, because the share of large icons differs between categories. Links and copies count
    once, in the order of `ICON_THEMES`; what is filed under two categories is left out. In the pool, icons of one name
    and category are one unit and stay in one split.
    """
    themes = [f"icons/{Path(pattern).parts[0]}" for pattern in ICON_THEMES.values()]
    folders = dict(zip(ICON_THEMES, system_files("icons", ICON_PACKAGES, tuple(themes), root), strict=True))
    about: dict[Path, tuple[str, str]] = {}
    for theme, pattern in ICON_THEMES.items():
        for category in ICON_CLASSES:
            folder = folders[theme].parent / pattern.format(OTHER_NAMES.get((theme, category), category))
            own = sorted(path for path in folder.glob("*.png") if path.is_file() and not path.is_symlink())
            about |= {path: (theme, category) for path in own if not path.stem.endswith("-symbolic")}
    paths = without_copies(list(about), {path: category for path, (_, category) in about.items()})
    lacking = set(ICON_THEMES) - {about[path][0] for path in paths}
    if lacking:
        raise IntegrityError(
            f"no icons of 48 pixels in the themes {', '.join(sorted(lacking))} below {folders[TEST_THEME].parent}"
        )
    test = np.array([about[path][0] == TEST_THEME for path in paths])
    return Records(
        ids=[f"{about[path][0]}/{about[path][1]}/{path.name}" for path in paths],
        read=lambda row: on_white_square(open_picture(paths[row])),
        where=lambda row: str(paths[row]),
        classes=ICON_CLASSES,
        labels=np.array([ICON_CLASSES.index(about[path][1]) for path in paths], dtype=np.int64),
        units=[
            f"{'test ' if held else ''}{about[path][1]}/{path.stem}" for path, held in zip(paths, test, strict=True)
        ],
        together=True,
        stamp=lambda row: file_stamp(paths[row]),
        sources=tuple(sorted({path.parent for path in about})),
        given={"pool": np.flatnonzero(~test), "test": np.flatnonzero(test)},
    )
