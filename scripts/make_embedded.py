"""Make the Fashion-MNIST subset that the package ships, from the files of the whole data set.

    python scripts/make_embedded.py [--source FOLDER] [--target FOLDER]

Debian's package ``dataset-fashion-mnist`` installs the source. The same input gives the same bytes:
the choice depends on hashes of the positions, not on a random generator whose stream may change.
"""

import argparse
import gzip
import hashlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from chronofed.data.images import read_idx

SOURCE = Path("/usr/share/datasets/fashion-mnist")
TARGET = Path(__file__).parents[1] / "src/chronofed/data/embedded"
SEED = 0
PER_CLASS = {"train": 1050, "t10k": 200}

LICENCE = """\
The images and labels in the folder fashion-mnist-mini are a subset of Fashion-MNIST,
https://github.com/zalandoresearch/fashion-mnist, and come under its licence:

The MIT License (MIT)

Copyright (c) 2017 Zalando SE, https://tech.zalando.com

Permission is hereby granted, free of charge, to any person obtaining a copy
of this software and associated documentation files (the "Software"), to deal
in the Software without restriction, including without limitation the rights
to use, copy, modify, merge, publish, distribute, sublicense, and/or sell
copies of the Software, and to permit persons to whom the Software is
furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in
all copies or substantial portions of the Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR
IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY,
FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE
AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER
LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM,
OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN
THE SOFTWARE.
"""


def chosen(labels: NDArray[np.uint8], split: str) -> NDArray[np.int64]:
    """Positions of the subset, in their old order: the smallest hashes of every class."""
    keys = [hashlib.sha256(f"{SEED}/{split}/{at}".encode()).digest() for at in range(len(labels))]
    order = np.array(sorted(range(len(labels)), key=keys.__getitem__))
    picks = [order[labels[order] == label][: PER_CLASS[split]] for label in np.unique(labels)]
    return np.sort(np.concatenate(picks))


def idx(array: NDArray[np.uint8]) -> bytes:
    """A compressed IDX file without a name or time in its header."""
    head = bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4) for n in array.shape)
    return gzip.compress(head + array.tobytes(), 9, mtime=0)


def make(source: Path, target: Path) -> int:
    """Write the subset and its licence below ``target``; the number of bytes written."""
    folder = target / "fashion-mnist-mini"
    folder.mkdir(parents=True, exist_ok=True)
    size = (target / "LICENSE").write_text(LICENCE)
    for split in PER_CLASS:
        names = f"{split}-images-idx3-ubyte.gz", f"{split}-labels-idx1-ubyte.gz"
        images, labels = (read_idx(source / name) for name in names)
        rows = chosen(labels, split)
        for name, array in zip(names, (images, labels), strict=True):
            size += (folder / name).write_bytes(idx(array[rows]))
    return size


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--source", type=Path, default=SOURCE)
    parser.add_argument("--target", type=Path, default=TARGET)
    arguments = parser.parse_args()
    print(f"{make(arguments.source, arguments.target):,} bytes in {arguments.target}")


if __name__ == "__main__":
    main()
