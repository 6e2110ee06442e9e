"""`.metadata`, in which PyTorch's distributed checkpoints describe their tensors, read
without running anything.

It is a pickle, and a stranger may have made it: an unpickler that knows the dozen
classes such a description is made of reads it, and refuses all others. Tensors are read
with `weights_only`.
"""

from __future__ import annotations

import pickle
from pathlib import Path, PosixPath, PurePosixPath
from typing import Any, Final

import torch
from torch.distributed.checkpoint import filesystem, metadata
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata
from torch.serialization import _get_layout

from profiles.errors import InvalidFile
from profiles.files import shown

DESCRIPTION: Final = ".metadata"
_CLASSES = (
    metadata.BytesStorageMetadata,
    metadata.ChunkStorageMetadata,
    metadata.Metadata,
    metadata.MetadataIndex,
    metadata.StorageMeta,
    metadata.TensorProperties,
    metadata.TensorStorageMetadata,
    metadata._MEM_FORMAT_ENCODING,
    filesystem._StorageInfo,
    torch.Size,
    PosixPath,
    PurePosixPath,
    _get_layout,
)
_KNOWN = {(one.__module__, one.__qualname__): one for one in _CLASSES}


class Reader(FileSystemReader):
    """torch's reader, with a description that was read safely."""

    def __init__(self, path: Path, description: Metadata) -> None:
        super().__init__(path)
        self._description = description

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """What `described` read."""
        return self._description


def described(path: Path) -> Metadata:
    """The tensors in the checkpoint at *path*, and where each of their pieces is.

    Raises InvalidFile if that is damaged, or made of anything else.
    """
    name = f"checkpoint {shown(path)}"
    try:
        with (path / DESCRIPTION).open("rb") as file:
            found: Metadata = _Unpickler(file).load()
    except OSError as error:
        raise InvalidFile(f"{name} cannot be read: {error.strerror}") from error
    except InvalidFile as error:
        raise InvalidFile(f"{name}: {error}") from error
    except Exception as error:  # a damaged pickle raises whatever it likes
        raise InvalidFile(
            f"{name} is damaged: its {DESCRIPTION} is cut or changed"
        ) from error
    if not _describes_tensors(found):
        raise InvalidFile(f"{name} is damaged: its {DESCRIPTION} describes no tensors")
    for file_name in files_of(found):
        if Path(file_name).name != file_name or not (path / file_name).is_file():
            raise InvalidFile(f"{name} is damaged: {shown(file_name)} is not in it")
    return found


def _describes_tensors(found: Any) -> bool:
    """Whether what a pickle held is a description, down to every number in it."""
    if type(found) is not Metadata:
        return False
    inside: Any = found
    try:
        entries, places = inside.state_dict_metadata, inside.storage_data
        return all(
            isinstance(name, str) and _describes(entry, type(entry))
            for name, entry in entries.items()
        ) and all(
            _leads(index, type(index), place, type(place))
            for index, place in places.items()
        )
    except (AttributeError, TypeError, ValueError):  # what it lacks, or has instead
        return False


def _describes(entry: Any, kind: type) -> bool:
    """Whether *entry*, of *kind*, has the type, the size and the cuts of a tensor."""
    return kind is metadata.BytesStorageMetadata or (
        kind is metadata.TensorStorageMetadata
        and isinstance(entry.properties.dtype, torch.dtype)
        and _sized(entry.size)
        and all(_sized(one.offsets) and _sized(one.sizes) for one in entry.chunks)
    )


def _sized(size: Any) -> bool:
    return isinstance(size, torch.Size) and all(one >= 0 for one in size)


def _leads(index: Any, named: type, place: Any, placed: type) -> bool:
    """Whether a piece is known by name and offset, and lies in a file."""
    return (
        named is metadata.MetadataIndex
        and isinstance(index.fqn, str)
        and (index.offset is None or _sized(index.offset))
        and placed is filesystem._StorageInfo
        and isinstance(place.relative_path, str)
        and all(type(one) is int and one >= 0 for one in (place.offset, place.length))
    )


def files_of(description: Metadata) -> list[str]:
    """The files that hold the tensors."""
    return sorted({place.relative_path for place in description.storage_data.values()})


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _KNOWN:
            return _KNOWN[module, name]
        found = getattr(torch, name, None) if module == "torch" else None
        if isinstance(found, torch.dtype):
            return found
        raise InvalidFile(
            f"its {DESCRIPTION} names {shown(f'{module}.{name}')}, which describes no "
            "tensor; it was not read"
        )
