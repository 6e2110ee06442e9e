"""The support table as a page shows it: Markdown, one line a combination."""

from __future__ import annotations

from costmodel.support import Row, mechanisms

HEAD = ("mechanism", "combination", "carried out", "how, or why not")


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
