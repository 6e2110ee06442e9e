"""`Tiers`: where a layer's saved tensors go, the host's memory or a drive."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from profiles.drive import default_folder
from runtime.drive_tensors import OnDrive, Scratch
from runtime.host import Away, Host


class Tiers:
    """The copies of one device; what goes to a drive is in files of *folder*."""

    def __init__(self, device: torch.device, folder: Path | None = None) -> None:
        self.host = Host(device)
        self.scratch = Scratch(folder or default_folder(), self.host)

    def away(self, flat: Tensor, tier: str | None) -> Away | OnDrive:
        """*flat*, 1-D, on its way to *tier*."""
        if tier == "nvme":
            return self.scratch.put(flat)
        return Away(flat, self.host)

    def sent(self) -> None:
        """A layer has begun all its copies out."""
        self.host.sent()
        self.scratch.sent()
