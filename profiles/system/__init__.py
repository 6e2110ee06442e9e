"""The process and its host: memory, mapped files, networks."""

from typing import TYPE_CHECKING

from profiles.lazy import public

if TYPE_CHECKING:
    from profiles.system.allocator import (
        fewer_collections,
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

__all__, __getattr__ = public(__name__, __file__)
