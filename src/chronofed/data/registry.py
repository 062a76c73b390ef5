"""The catalogue of named data sets: descriptions, files and readers.

torch is imported only when a data set is loaded, so that ``chronofed data list`` is fast.
"""

import difflib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from chronofed.core.errors import DataError, SpecError
from chronofed.core.paths import expand

if TYPE_CHECKING:
    from chronofed.data.dataset import Dataset

ENVIRONMENT = "CHRONOFED_DATA"
EMBEDDED = Path(__file__).parent / "embedded"


@dataclass(frozen=True, slots=True)
class File:
    """A published file with its checksums.

    Attributes:
        path: Path below the data folder.
        size: Size in bytes.
        md5: MD5 of the file.
        content: SHA-256 of the content of a ``.gz``, to accept the same data with other compression.
    """

    path: str
    size: int
    md5: str
    content: str = ""

    @property
    def name(self) -> str:
        """Last part of the path and of the URL."""
        return self.path.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class Entry:
    """One named data set.

    Attributes:
        name: Name in specifications.
        title: One line about it.
        licence: Its licence.
        classes: Names of the classes.
        shape: Shape of one sample.
        train: Number of training samples.
        test: Number of test samples.
        reader: Function of :mod:`chronofed.data.images` that reads it.
        folder: Folder of the parts, below the data folder.
        parts: Files that the reader needs, with their sizes where these are fixed.
        source: URL that file names are appended to; empty if the data are embedded.
        files: Files to download.
        package: Debian package.
    """

    name: str
    title: str
    licence: str
    classes: tuple[str, ...]
    shape: tuple[int, ...]
    train: int
    test: int
    reader: Literal["fashion_mnist", "cifar10", "cifar100"]
    folder: str
    parts: tuple[tuple[str, int], ...]
    source: str = ""
    files: tuple[File, ...] = ()
    package: str = ""

    @property
    def embedded(self) -> bool:
        """True if the data are part of this package."""
        return not self.source

    @property
    def size(self) -> int:
        """Number of bytes to download."""
        return sum(file.size for file in self.files)

    @property
    def offline(self) -> str:
        """Advice for a machine without a network, in one clause."""
        below = Path("DIR", self.files[0].path).parent if self.files else Path("DIR")
        files = ", ".join(file.name for file in self.files)
        hint = f"put {files} into {below} and set {ENVIRONMENT}=DIR or give --data DIR"
        return f"{hint}, or apt install {self.package}" if self.package else hint


def find(name: str) -> Entry:
    """Return the catalogue's entry of this name.

    Raises:
        SpecError: If there is none; the message has the nearest name and all names.
    """
    if name in CATALOGUE:
        return CATALOGUE[name]
    near = difflib.get_close_matches(name, CATALOGUE, n=1)
    guess = f"did you mean {near[0]!r}? " if near else ""
    raise SpecError(f"unknown data set {name!r}: {guess}known are {', '.join(CATALOGUE)}")


def folders(extra: Path | None = None) -> list[Path]:
    """Return the folders that are searched for data, in order; downloads go to the first.

    The folder given, ``$CHRONOFED_DATA``, the user's cache, and Debian's ``/usr/share/datasets``.
    """
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    chosen = [extra, os.environ.get(ENVIRONMENT), Path(cache, "chronofed"), "/usr/share/datasets"]
    return [expand(place) for place in chosen if place]


def locate(name: str, folder: Path | None = None) -> Path | None:
    """Return the folder or archive of a data set; ``None`` if it is not found."""
    entry = find(name)
    if entry.embedded:
        return EMBEDDED / entry.folder
    found = (locate_in(entry, place) for place in folders(folder))
    return next((path for path in found if path), None)


def locate_in(entry: Entry, place: Path) -> Path | None:
    """Return the path of a data set below one data folder, or ``None``.

    ``place`` may also be the folder of the files themselves, as torchvision's ``FashionMNIST/raw``.
    """
    for candidate in (place / entry.folder, place):
        if all(stored(candidate / part).is_file() for part, _ in entry.parts):
            return candidate
    archives = (place / file.path for file in entry.files if file.path.endswith(".tar.gz"))
    return next((archive for archive in archives if archive.is_file()), None)


def load(name: str, folder: Path | None = None) -> "Dataset":
    """Read a data set into RAM.

    Raises:
        SpecError: If no data set has this name.
        DataError: If its files are not found, damaged, or of another data set.
    """
    entry, path = find(name), locate(name, folder)
    if path is None:
        places = ", ".join(map(str, folders(folder)))
        online = f"online: chronofed data get {name}"
        raise DataError(f"{name} is not in {places}; {online}; offline: {entry.offline}")
    data = _reader(entry)(path, name, entry.classes)
    counts, expected = (len(data.train), len(data.test)), (entry.train, entry.test)
    if counts != expected or data.shape != entry.shape:
        what = f"{counts} samples of shape {data.shape}, expected {expected} of {entry.shape}"
        raise DataError(f"{path}: not {name}: {what}")
    return data


def stored(path: Path) -> Path:
    """Return the file itself or, if a ``.gz`` does not exist, the path without ``.gz``."""
    return path if path.suffix != ".gz" or path.exists() else path.with_suffix("")


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _reader(entry: Entry) -> "Callable[[Path, str, tuple[str, ...]], Dataset]":
    from chronofed.data import images

    readers = {
        "fashion_mnist": images.fashion_mnist,
        "cifar10": images.cifar10,
        "cifar100": images.cifar100,
    }
    return readers[entry.reader]


_CLOTHES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
_CIFAR10 = _words("airplane automobile bird cat deer dog frog horse ship truck")
_CIFAR100 = _words("""
    apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus
    butterfly camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch
    crab crocodile cup dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo
    keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle mountain
    mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain
    plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk
    skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank telephone
    television tiger tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm
""")
_FASHION_FILES = (
    File(
        "fashion-mnist/train-images-idx3-ubyte.gz",
        size=26_421_880,
        md5="8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        content="c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    ),
    File(
        "fashion-mnist/train-labels-idx1-ubyte.gz",
        size=29_515,
        md5="25c81989df183df01b3e8a0aad5dffbe",
        content="bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    ),
    File(
        "fashion-mnist/t10k-images-idx3-ubyte.gz",
        size=4_422_102,
        md5="bef4ecab320f06d8554ea6380940ec79",
        content="5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    ),
    File(
        "fashion-mnist/t10k-labels-idx1-ubyte.gz",
        size=5_148,
        md5="bb300cfdad3c16e7a12a480ee83cd310",
        content="0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    ),
)
# Sizes are left open: Debian's files hold the same data in a few bytes less.
_FASHION_PARTS = tuple((file.name, 0) for file in _FASHION_FILES)
_CIFAR_LICENCE = "no licence stated; cite Krizhevsky, Learning Multiple Layers of Features, 2009"

CATALOGUE: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        Entry(
            name="fashion-mnist-mini",
            title="12,500 images of Fashion-MNIST, the same number of each class, in this package",
            licence="MIT, Zalando SE",
            classes=_CLOTHES,
            shape=(1, 28, 28),
            train=10_500,
            test=2_000,
            reader="fashion_mnist",
            folder="fashion-mnist-mini",
            parts=_FASHION_PARTS,
        ),
        Entry(
            name="fashion-mnist",
            title="Fashion-MNIST: 70,000 grey images of clothes",
            licence="MIT, Zalando SE",
            classes=_CLOTHES,
            shape=(1, 28, 28),
            train=60_000,
            test=10_000,
            reader="fashion_mnist",
            folder="fashion-mnist",
            parts=_FASHION_PARTS,
            source="http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            files=_FASHION_FILES,
            package="dataset-fashion-mnist",
        ),
        Entry(
            name="cifar10",
            title="CIFAR-10: 60,000 colour photographs",
            licence=_CIFAR_LICENCE,
            classes=_CIFAR10,
            shape=(3, 32, 32),
            train=50_000,
            test=10_000,
            reader="cifar10",
            folder="cifar-10-batches-bin",
            parts=(
                *((f"data_batch_{number}.bin", 30_730_000) for number in range(1, 6)),
                ("test_batch.bin", 30_730_000),
            ),
            source="https://www.cs.toronto.edu/~kriz/",
            files=(
                File("cifar-10-binary.tar.gz", 170_052_171, "c32a1d4ab5d03f1284b67883e8d87530"),
            ),
        ),
        Entry(
            name="cifar100",
            title="CIFAR-100: 60,000 colour photographs with fine labels",
            licence=_CIFAR_LICENCE,
            classes=_CIFAR100,
            shape=(3, 32, 32),
            train=50_000,
            test=10_000,
            reader="cifar100",
            folder="cifar-100-binary",
            parts=(("train.bin", 153_700_000), ("test.bin", 30_740_000)),
            source="https://www.cs.toronto.edu/~kriz/",
            files=(
                File("cifar-100-binary.tar.gz", 168_513_733, "03b5dce01913d631647c71ecec9e9cb8"),
            ),
        ),
    )
}
