"""Files of other frameworks: layouts written as theirs, and theirs read as layouts."""

from typing import TYPE_CHECKING

from profiles.lazy import public

if TYPE_CHECKING:
    from costmodel.formats.commands import (
        Exported,
        Present,
        exported,
        present,
        run_of_pricing,
    )
    from costmodel.formats.deepspeed import needed_by_deepspeed
    from costmodel.formats.setup import Foreign, Run, run_of
    from costmodel.formats.sources import (
        Subject,
        is_layout_file,
        read_foreign,
        subject_of,
    )
    from costmodel.formats.targets import (
        TARGETS,
        exports,
        files_of,
        framework_for,
        require_targets,
        write_files,
    )

__all__, __getattr__ = public(__name__, __file__)
