"""What the four commands share: options, exit codes, JSON, the terminal."""

from typing import TYPE_CHECKING

from profiles.lazy import lazily

if TYPE_CHECKING:
    from profiles.commandline.commands import (
        command,
        enter,
        one_interrupt,
        premise,
        warn,
    )
    from profiles.commandline.job import JobOptions, job_options
    from profiles.commandline.options import (
        Function,
        collected,
        from_keywords,
        given,
        option,
    )
    from profiles.commandline.param_types import (
        LARGEST_SAMPLES,
        LARGEST_SEQUENCE,
        LONGEST_TEXT,
        counts,
        offload,
        one_of,
        path,
        real,
        refuse,
        some_of,
        text,
        whole,
    )
    from profiles.commandline.terminal import console, emit_json, progress

__all__ = [
    "LARGEST_SAMPLES",
    "LARGEST_SEQUENCE",
    "LONGEST_TEXT",
    "Function",
    "JobOptions",
    "collected",
    "command",
    "console",
    "counts",
    "emit_json",
    "enter",
    "from_keywords",
    "given",
    "job_options",
    "offload",
    "one_interrupt",
    "one_of",
    "option",
    "path",
    "premise",
    "progress",
    "real",
    "refuse",
    "some_of",
    "text",
    "warn",
    "whole",
]

__getattr__ = lazily(__name__, __file__)
