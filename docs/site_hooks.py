"""What the site changes of a page: links to files beside the docs become their words,
and a drawing in Mermaid, whose script is not bundled, is folded."""

from __future__ import annotations

import re
from typing import Any

OUTSIDE = re.compile(r"\[(?P<words>[^\]]+)\]\((?:\.\./|[\w-]+\.(?:py|csv))[^)]*\)")
MERMAID = re.compile(r"^```mermaid\n(?P<drawing>.*?)^```$", re.M | re.S)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """*markdown* as the site shows it."""
    plain = OUTSIDE.sub(lambda found: found["words"], markdown)
    return MERMAID.sub(_folded, plain)


def _folded(found: re.Match[str]) -> str:
    lines = ["```text", *found["drawing"].splitlines(), "```"]
    inside = "\n".join(f"    {line}" for line in lines)
    return f'??? note "The arrows, as Mermaid source"\n\n{inside}\n'
