"""What the four commands share: options, exit codes, JSON, the terminal."""

from typing import TYPE_CHECKING

from profiles.lazy import public

if TYPE_CHECKING:
    from profiles.commandline.calibration import (
        CalibrationOptions,
        calibration_options,
    )
    from profiles.commandline.commands import (
        command,
        enter,
        one_interrupt,
        premise,
        warn,
    )
    from profiles.commandline.completion import (
        complete_clusters,
        complete_devices,
        complete_frameworks,
        complete_models,
        complete_some,
    )
    from profiles.commandline.defaults import without_defaults
    from profiles.commandline.lists import Entry, print_list
    from profiles.commandline.options import (
        Function,
        JobOptions,
        collected,
        flags,
        from_keywords,
        given,
        job_options,
        option,
        switch,
    )
    from profiles.commandline.param_types import (
        LARGEST_SAMPLES,
        LARGEST_SEQUENCE,
        LONGEST_TEXT,
        Choice,
        Count,
        FilePath,
        FloatRange,
        IntRange,
        PagePath,
        counts,
        offload,
        refuse,
        some_of,
        text,
    )
    from profiles.commandline.progress_line import (
        Line,
        counted,
        left_words,
        own_line,
        progress,
        progress_words,
        quiet,
    )
    from profiles.commandline.terminal import console, emit_json, hint

__all__, __getattr__ = public(__name__, __file__)
