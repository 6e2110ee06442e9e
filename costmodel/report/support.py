"""The support table as a page shows it: Markdown, one line a combination.

What frameworks can run, as a page shows it: Markdown, one line a claim.
"""

from __future__ import annotations

from collections.abc import Iterator

from costmodel.support import BASE, Capabilities, Row, mechanisms, own_capabilities

HEAD = ("mechanism", "combination", "executed", "how, or why not")


def support_table() -> str:
    """The whole table, mechanisms in the order that they are asked."""
    lines = [table_line(HEAD), table_line(("---",) * len(HEAD))]
    for mechanism in mechanisms():
        name = f"**{mechanism.name}**"
        for row in mechanism.rows:
            lines.append(
                table_line((name, combination_words(row), row.answer, row.reason))
            )
            name = ""
    return "\n".join(lines)


def combination_words(row: Row) -> str:
    """The facts of a row: `zero 1, 2 or 3; zero group part`."""
    return "; ".join(f"{name} {either(values)}" for name, values in row.when.items())


def either(values: tuple[str, ...]) -> str:
    *most, last = values
    return f"{', '.join(most)} or {last}" if most else last


def table_line(cells: tuple[str, ...]) -> str:
    plain = (cell.replace("|", "\\|") for cell in cells)
    return f"| {' | '.join(plain)} |"


CLAIMS_HEAD = ("framework", "fact", "has", "source")


def frameworks_table() -> str:
    """What each framework says of itself, bases before those that have them."""
    lines = [table_line(CLAIMS_HEAD), table_line(("---",) * len(CLAIMS_HEAD))]
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
