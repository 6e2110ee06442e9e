"""Work in a process of its own, that starts at once and leaves nothing behind."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

from runtime.launch.failures import LAUNCHER


def forked(work: Callable[[], Any], *, number: int) -> Any:
    """What *work* returns (JSON values), in a copy of this process; the *number*-th of
    its ranks meet for themselves.

    Nothing of torch but its import may have been used before. Ends this process where
    the copy failed, which has said why.
    """
    heard, told = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(heard)
        os.environ[LAUNCHER] = str(os.getppid())  # whom it ends with
        run = os.environ.get("TORCHELASTIC_RUN_ID", "run")
        os.environ["TORCHELASTIC_RUN_ID"] = f"{run}-{number}"
        _end(work, told)
    os.close(told)
    with os.fdopen(heard) as file:
        answer = file.read()
    _, status = os.waitpid(child, 0)
    if status or not answer:
        os._exit(1)
    return json.loads(answer)


def _end(work: Callable[[], Any], told: int) -> None:
    """Hand over what *work* returns, and end as `runtime.launch.worker` does."""
    failed = 1
    try:
        answer = json.dumps(work())
        with os.fdopen(told, "w") as file:
            file.write(answer)
        failed = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(failed)
