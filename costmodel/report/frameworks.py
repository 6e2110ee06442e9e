"""What frameworks can run, as a page shows it: Markdown, one line a claim."""

from __future__ import annotations

from collections.abc import Iterator

from costmodel.capabilities import BASE, Capabilities, own_capabilities
from costmodel.report.support import either, table_line

HEAD = ("framework", "fact", "has", "source")


def frameworks_table() -> str:
    """What each framework says of itself, bases before those that have them."""
    lines = [table_line(HEAD), table_line(("---",) * len(HEAD))]
    for one in own_capabilities():
        name = f"**{'all' if one.name == BASE else one.name}**"
        for cells in _claims(one):
            lines.append(table_line((name, *cells)))
            name = ""
    return "\n".join(lines)


def _claims(one: Capabilities) -> Iterator[tuple[str, str, str]]:
    if one.base not in (None, BASE) or not one.has:
        yield "", f"what {one.base} has", "" if one.has else "in all"
    for fact, has in one.has.items():
        yield fact, either(has.values), has.source
    for rule in one.never:
        words = "; ".join(f"{fact} {either(v)}" for fact, v in rule.when.items())
        yield words, "not together", rule.reason
