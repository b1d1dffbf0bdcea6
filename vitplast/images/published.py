"""What was published of the sets below the data folder: classes, images, MD5 of files. Plain facts, nothing is opened.

Sources: the sets' pages; torchvision 0.24 (MD5 of CIFAR, Flowers102, Pets); Zenodo records 2535967 and 3555552
(CIFAR-10-C, CIFAR-100-C; the MD5 of their files as two libraries list them, alike); the list files of the cleaned
version of DomainNet, whose 586,575 images are its published total.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType


@dataclass(frozen=True)
class Facts:
    """A set as it should lie on the disk.

    `images`: images of each official part. `md5`: path below the set's folder to MD5. `exact`: whether other numbers
    of images than these mean that something is wrong (DomainNet exists in several copies). `made_up`: whether these
    are numbers of a made-up set (`vitplast.images.made_up`).
    """

    classes: int
    images: dict[str, int] = field(default_factory=dict)
    md5: dict[str, str] = field(default_factory=dict)
    exact: bool = True
    made_up: bool = False


CIFAR10_MD5 = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
    "batches.meta": "5ff9c542aee3614f3951f8cda6e48888",
}
CIFAR100_MD5 = {
    "train": "16019d7e3df5f24257cddd939b257f8d",
    "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
    "meta": "7973b15100ade9c7d40fb424638fde48",
}
FLOWERS102_MD5 = {
    "imagelabels.mat": "e0620be6f572b9609742df49c70aed4d",
    "setid.mat": "a5357ecc9cb78c4bef273ce3793fc85c",
}
CIFAR10_C_MD5 = {
    "brightness.npy": "0a81ef75e0b523c3383219c330a85d48",
    "contrast.npy": "3c8262171c51307f916c30a3308235a8",
    "defocus_blur.npy": "7d1322666342a0702b1957e92f6254bc",
    "elastic_transform.npy": "9421657c6cd452429cf6ce96cc412b5f",
    "fog.npy": "7b397314b5670f825465fbcd1f6e9ccd",
    "frost.npy": "31f6ab3bce1d9934abfb0cc13656f141",
    "gaussian_blur.npy": "c33370155bc9b055fb4a89113d3c559d",
    "gaussian_noise.npy": "ecaf8b9a2399ffeda7680934c33405fd",
    "glass_blur.npy": "7361fb4019269e02dbf6925f083e8629",
    "impulse_noise.npy": "2090e01c83519ec51427e65116af6b1a",
    "jpeg_compression.npy": "2b9cc4c864e0193bb64db8d7728f8187",
    "motion_blur.npy": "fffa5f852ff7ad299cfe8a7643f090f4",
    "pixelate.npy": "0f14f7e2db14288304e1de10df16832f",
    "saturate.npy": "1cfae0964219c5102abbb883e538cc56",
    "shot_noise.npy": "3a7239bb118894f013d9bf1984be7f11",
    "snow.npy": "bb238de8555123da9c282dea23bd6e55",
    "spatter.npy": "8a5a3903a7f8f65b59501a6093b4311e",
    "speckle_noise.npy": "ef00b87611792b00df09c0b0237a1e30",
    "zoom_blur.npy": "6ea8e63f1c5cdee1517533840641641b",
    "labels.npy": "c439b113295ed5254878798ffe28fd54",
}
CIFAR100_C_MD5 = {
    "brightness.npy": "f22d7195aecd6abb541e27fca230c171",
    "contrast.npy": "322bb385f1d05154ee197ca16535f71e",
    "defocus_blur.npy": "d923e3d9c585a27f0956e2f2ad832564",
    "elastic_transform.npy": "a0792bd6581f6810878be71acedfc65a",
    "fog.npy": "4efc7ebd5e82b028bdbe13048e3ea564",
    "frost.npy": "3a39c6823bdfaa0bf8b12fe7004b8117",
    "gaussian_blur.npy": "5204ba0d557839772ef5a4196a052c3e",
    "gaussian_noise.npy": "ecc4d366eac432bdf25c024086f5e97d",
    "glass_blur.npy": "0bf384f38e5ccbf8dd479d9059b913e1",
    "impulse_noise.npy": "3b3c210ddfa0b5cb918ff4537a429fef",
    "jpeg_compression.npy": "c851b7f1324e1d2ffddeb76920576d11",
    "motion_blur.npy": "732a7e2e54152ff97c742d4c388c5516",
    "pixelate.npy": "96c00c60f144539e14cffb02ddbd0640",
    "saturate.npy": "c0697e9fdd646916a61e9c312c77bf6b",
    "shot_noise.npy": "b0a1fa6e1e465a747c1b204b1914048a",
    "snow.npy": "0237be164583af146b7b144e73b43465",
    "spatter.npy": "12ccf41d62564d36e1f6a6ada5022728",
    "speckle_noise.npy": "e3f215b1a0f9fd9fd6f0d1cf94a7ce99",
    "zoom_blur.npy": "0204613400c034a81c4830d5df81cb82",
    "labels.npy": "bb4026e9ce52996b95f439544568cdb2",
}
#: The 19 corruptions of the published files.
CORRUPTIONS_C = tuple(name.removesuffix(".npy") for name in CIFAR10_C_MD5 if name != "labels.npy")

#: Images in the train and test list of each domain of DomainNet's cleaned version.
DOMAINNET = MappingProxyType({
    "clipart": (33525, 14604), "infograph": (36023, 15582), "painting": (50416, 21850),
    "quickdraw": (120750, 51750), "real": (120906, 52041), "sketch": (48212, 20916),
})  # fmt: skip

FACTS = MappingProxyType({
    "cifar10": Facts(10, {"pool": 50_000, "test": 10_000}, CIFAR10_MD5),
    "cifar100": Facts(100, {"pool": 50_000, "test": 10_000}, CIFAR100_MD5),
    "cifar10_c": Facts(10, {"severity": 10_000}, CIFAR10_C_MD5),
    "cifar100_c": Facts(100, {"severity": 10_000}, CIFAR100_C_MD5),
    "flowers102": Facts(102, {"train": 1020, "validation": 1020, "test": 6149}, FLOWERS102_MD5),
    "pets": Facts(37, {"pool": 3680, "test": 3669}),
    "imagenet_val": Facts(1000, {"source": 50_000}),
    **{f"domainnet_{d}": Facts(345, {"all": sum(n)}, exact=False) for d, n in DOMAINNET.items()},
    **{f"domainnet_{d}_official": Facts(345, {"pool": n[0], "test": n[1]}) for d, n in DOMAINNET.items()},
})  # fmt: skip
