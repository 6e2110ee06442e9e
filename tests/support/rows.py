"""What tests of the reading list's rows (`pytest.mark.row`) write down."""

from __future__ import annotations

from collections.abc import Callable

Obtained = Callable[[object], None]  # the fixture `obtained`
