"""Where the published archives are, their hashes, and the folder of the data folder that each becomes.

`md5` is empty where none is published with certainty (DomainNet, whose server also speaks plain http only): its
SHA-256 is then recorded at the first download, in `hashes.json` of the data folder, and compared ever after. The
environment variable VITPLAST_MIRROR names another place for all of them: MIRROR/SET/FILE. ImageNet is not here: it
may not be passed on.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from vitplast.images.published import DOMAINNET

MIRROR = "VITPLAST_MIRROR"


@dataclass(frozen=True)
class Piece:
    """One file to fetch.

    `target`: what it becomes, relative to the data folder. `inside`: the folder of the archive that becomes `target`;
    None: the file itself is the target. `most_files`: files in the archive at most. `sign`: what is in `target` when
    it is there, where the folder alone says too little.
    """

    url: str
    md5: str
    target: str
    inside: str | None
    most_files: int = 100
    megabytes: int = 1
    sign: str = ""

    def there(self, data: Path) -> bool:
        """Whether the data folder has it."""
        return (data / self.target / self.sign).exists() if self.sign else (data / self.target).exists()

    @property
    def file(self) -> str:
        return self.url.rpartition("/")[2]

    def address(self, name: str) -> str:
        """Where it is fetched for the set `name`: its published address, or that below the mirror."""
        mirror = os.environ.get(MIRROR, "").rstrip("/")
        return f"{mirror}/{name}/{self.file}" if mirror else self.url


_TORONTO = "https://www.cs.toronto.edu/~kriz/"
_OXFORD = "https://www.robots.ox.ac.uk/~vgg/data/"
_BOSTON = "http://csr.bu.edu/ftp/visda/2019/multi-source/"
#: Megabytes of the archive of each domain; clipart and painting are the cleaned ones.
_DOMAINS = {"clipart": 1300, "infograph": 4000, "painting": 3700, "quickdraw": 439, "real": 5600, "sketch": 2500}


def _domain(domain: str) -> tuple[Piece, ...]:
    cleaned = "groundtruth/" if domain in ("clipart", "painting") else ""
    return (Piece(f"{_BOSTON}{cleaned}{domain}.zip", "", f"domainnet/{domain}", domain, 400_000, _DOMAINS[domain]),)


def _lists(domain: str) -> tuple[Piece, ...]:
    return tuple(
        Piece(f"{_BOSTON}domainnet/txt/{domain}_{part}.txt", "", f"domainnet/{domain}_{part}.txt", None)
        for part in ("train", "test")
    )


PIECES: MappingProxyType[str, tuple[Piece, ...]] = MappingProxyType({
    "cifar10": (Piece(f"{_TORONTO}cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a",
                      "cifar10/cifar-10-batches-py", "cifar-10-batches-py", megabytes=170),),
    "cifar100": (Piece(f"{_TORONTO}cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85",
                       "cifar100/cifar-100-python", "cifar-100-python", megabytes=170),),
    "cifar10_c": (Piece("https://zenodo.org/record/2535967/files/CIFAR-10-C.tar", "56bf5dcef84df0e2308c6dcbcbbd8499",
                        "cifar10_c", "CIFAR-10-C", megabytes=2918, sign="labels.npy"),),
    "cifar100_c": (Piece("https://zenodo.org/record/3555552/files/CIFAR-100-C.tar", "11f0ed0f1191edbf9fa23466ae6021d3",
                         "cifar100_c", "CIFAR-100-C", megabytes=2918, sign="labels.npy"),),
    "flowers102": (
        Piece(f"{_OXFORD}flowers/102/102flowers.tgz", "52808999861908f626f3c1f4e79d11fa",
              "flowers102/flowers-102/jpg", "jpg", 20_000, 345),
        Piece(f"{_OXFORD}flowers/102/imagelabels.mat", "e0620be6f572b9609742df49c70aed4d",
              "flowers102/flowers-102/imagelabels.mat", None),
        Piece(f"{_OXFORD}flowers/102/setid.mat", "a5357ecc9cb78c4bef273ce3793fc85c",
              "flowers102/flowers-102/setid.mat", None),
    ),
    "pets": (
        Piece(f"{_OXFORD}pets/data/images.tar.gz", "5c4f3ee8e5d25df40f4fd59a7f44e54c",
              "pet/oxford-iiit-pet/images", "images", 20_000, 790),
        Piece(f"{_OXFORD}pets/data/annotations.tar.gz", "95a8c909bbe2e81eed6a22bccdf3f68f",
              "pet/oxford-iiit-pet/annotations", "annotations", 60_000, 20),
    ),
    **{f"domainnet_{d}": _domain(d) for d in DOMAINNET},
    **{f"domainnet_{d}_official": _domain(d) + _lists(d) for d in DOMAINNET},
})  # fmt: skip
