"""Files of personal models: one for each client, under a name that any file system takes."""

import hashlib
from pathlib import Path
from urllib.parse import quote

PERSONAL = "personal"
"""Folder of personal models."""
LONGEST_NAME = 100
"""Characters of a file name that come from the client's name."""


def personal_path(folder: Path, client: str) -> Path:
    """Return the file of a client's personal model; a name never leaves the folder.

    >>> personal_path(Path("model"), "north/2").as_posix()
    'model/personal/north%2F2.safetensors'
    """
    # Lone surrogates of a name that is not text cannot be encoded otherwise.
    name = quote(client, safe=" ", errors="surrogatepass")
    if len(name) > LONGEST_NAME or client != client.lower() or name.startswith("."):
        # Long names share their beginning, and some file systems do not tell capitals apart.
        mark = hashlib.blake2b(client.encode(errors="surrogatepass"), digest_size=4).hexdigest()
        name = f"{name[:LONGEST_NAME]}-{mark}".lstrip(".")
    return folder / PERSONAL / f"{name}.safetensors"
