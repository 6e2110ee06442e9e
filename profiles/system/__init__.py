"""The process and its host: memory, mapped files, networks."""

from typing import TYPE_CHECKING

from profiles.lazy import lazily

if TYPE_CHECKING:
    from profiles.system.allocator import (
        fewer_collections,
        keep_freed_arrays,
        keep_heap,
    )
    from profiles.system.mmap_file import (
        BUCKET_BYTES,
        PAGE_BYTES,
        DriveFile,
        Part,
        default_folder,
        in_memory,
        is_on_drive,
        require_room,
        whole_pages,
    )
    from profiles.system.network import Endpoint, interface, meeting_point, route_to

__all__ = [
    "BUCKET_BYTES",
    "PAGE_BYTES",
    "DriveFile",
    "Endpoint",
    "Part",
    "default_folder",
    "fewer_collections",
    "in_memory",
    "interface",
    "is_on_drive",
    "keep_freed_arrays",
    "keep_heap",
    "meeting_point",
    "require_room",
    "route_to",
    "whole_pages",
]

__getattr__ = lazily(__name__, __file__)
