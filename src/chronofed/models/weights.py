"""The weights of a module as a safetensors file, with the names that torch gives them."""

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from chronofed.core import safetensors_io
from chronofed.core.atomic import write_parts
from chronofed.core.errors import RunError
from chronofed.core.limits import MESSAGE_HEADER
from chronofed.core.safetensors_io import OpenFile, Place

_CHUNK_BYTES = 1 << 20


def named_weights(module: nn.Module) -> dict[str, Tensor]:
    """Return parameters and buffers by name, those that ``state_dict`` leaves out included."""
    found = {**module.state_dict(), **dict(module.named_buffers())}
    return {name: value.detach() for name, value in found.items() if isinstance(value, Tensor)}


def write_weights(path: Path, weights: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    """Write a safetensors file; return its digest.

    Raises:
        StorageError: If it cannot be written.
    """
    found = hashlib.blake2b(digest_size=16)

    def parts() -> Iterator[bytes | memoryview]:
        here = {name: tensor.cpu() for name, tensor in weights.items()}
        for part in safetensors_io.save(here, {"format": "pt", **metadata}):
            found.update(part)
            yield part

    write_parts(path, parts())
    return found.hexdigest()


def read_weights(path: Path, module: nn.Module, digest: str) -> None:
    """Fill a module with the weights of a file.

    Nothing is read before the file is known to hold exactly the tensors that the module has.

    Args:
        path: The file.
        module: The module, of the right shape.
        digest: The digest that the file must have.

    Raises:
        RunError: If the file is missing or damaged, or belongs to another model.
    """
    wanted = named_weights(module)
    try:
        source = OpenFile(path)
        _, places = safetensors_io.read_header(source, MESSAGE_HEADER)
        _check_names(wanted, places)
        if _digest(source) != digest:
            raise ValueError("it does not match its digest in model.json")
        _fill(module, source, places)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise RunError(f"{path} cannot be used: {reason}; restore it from a copy") from error


def _fill(module: nn.Module, source: OpenFile, places: Mapping[str, Place]) -> None:
    """Copy the tensors of a file into a module, which may have been built without memory."""
    if any(tensor.is_meta for tensor in named_weights(module).values()):
        module.to_empty(device="cpu")
    with torch.no_grad():
        for name, tensor in named_weights(module).items():
            tensor.copy_(safetensors_io.read(source, places[name]))


def _check_names(wanted: Mapping[str, Tensor], places: Mapping[str, Place]) -> None:
    """Refuse a file with other tensors than a module has."""
    for name in sorted({*wanted, *places}):
        if name not in wanted or name not in places:
            lacks = "the file" if name in wanted else "the model"
            raise ValueError(f"{lacks} has no {name!r:.80}")
        have, want = places[name], wanted[name]
        code = safetensors_io.CODES[want.dtype]
        if have.shape != tuple(want.shape) or have.code != code:
            found = f"{have.code}{list(have.shape)}"
            raise ValueError(f"{name!r:.80} is {found}, not {code}{list(want.shape)}")


def _digest(source: OpenFile) -> str:
    found = hashlib.blake2b(digest_size=16)
    for start in range(0, source.size, _CHUNK_BYTES):
        part = memoryview(bytearray(min(_CHUNK_BYTES, source.size - start)))
        source.read_into(start, part)
        found.update(part)
    return found.hexdigest()
