"""The lists of docs/support.md and docs/frameworks.md, as Markdown.

Both are read off the data that `plan` and `execute` answer by, and group what is said
alike: sources, and what a refusal advises, are left to the data.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby

from costmodel.support import BASE, Capabilities, Row, mechanisms, own_capabilities

YES = "yes"
EVERY = (
    *(("1", ">1"), ("0", "1", "2", "3"), ("no", "yes"), ("none", "some")),
    *(("all", "part"), ("device", "host", "drive")),
    ("equal", "equal but at the ends", "unequal"),
)
When = Mapping[str, tuple[str, ...]]  # the values of each fact of a combination


def support_table() -> str:
    """What is executed, mechanism by mechanism in the order that they are asked."""
    return "\n".join(
        line
        for one in mechanisms()
        for line in (f"- **{one.name}**", *map("  - {}".format, _answers(one.rows)))
    )


def frameworks_table() -> str:
    """What each framework has, bases before those that have them."""
    return "\n".join(
        f"- **{', '.join(names)}**: {has}."
        + (f" *Not together*: {never}." * bool(never))
        for (has, never), names in _alike(own_capabilities()).items()
    )


def either(values: tuple[str, ...]) -> str:
    """Alternatives: `0, 1 or 2`."""
    *most, last = values
    return f"{', '.join(most)} or {last}" if most else last


def together(when: When) -> str:
    """Facts that hold at once: `zero 1, 2 or 3 with zero group part`."""
    return " with ".join(_said(*fact) for fact in when.items())


def _said(name: str, values: tuple[str, ...]) -> str:
    if values in (("yes",), ("no",)):
        return name if values == ("yes",) else f"no {name}"
    return f"{name} {either(values)}"


def _answers(rows: Iterable[Row]) -> Iterator[str]:
    """Neighbours with one answer in one line; a refusal says its reason itself."""
    for answer, some in groupby(rows, lambda row: row.answer):
        if answer == YES:
            found = _summarised([row.when for row in some])
            yield f"{answer}: {'; '.join(map(together, found))}"
        else:
            yield f"{answer}: {'; '.join(together(row.when) for row in some)}"


def _summarised(several: Iterable[When]) -> list[When]:
    """The same combinations in fewer: of two that differ in one fact's values both in
    one, and none that another one covers."""
    found: list[When] = []
    for when in several:
        for number, one in enumerate(found):
            both = _merged(one, when)
            if both is not None:
                found[number] = both
                break
        else:
            found.append(when)
    kept = [
        one
        for one in found
        if not any(one is not other and _covers(other, one) for other in found)
    ]
    return kept if len(kept) == len(found) else _summarised(kept)


def _covers(wide: When, narrow: When) -> bool:
    return wide.keys() <= narrow.keys() and all(
        {*narrow[fact]} <= {*wide[fact]} for fact in wide
    )


def _merged(one: When, other: When) -> When | None:
    """Both in one, where a single fact tells them apart at most."""
    if one.keys() != other.keys():
        return None
    apart = [fact for fact in one if one[fact] != other[fact]]
    if len(apart) > 1:
        return None
    both = {fact: (*one[fact], *other[fact]) for fact in apart}
    return {**one, **{fact: tuple(dict.fromkeys(v)) for fact, v in both.items()}}


def _alike(several: Iterable[Capabilities]) -> dict[tuple[str, str], list[str]]:
    """Frameworks by what they have, and have not together."""
    alike: dict[tuple[str, str], list[str]] = defaultdict(list)
    for one in several:
        alike[_has(one), _never(one)].append("all" if one.name == BASE else one.name)
    return alike


def _has(one: Capabilities) -> str:
    """Its facts by value, and whose it has besides."""
    alike: dict[str, list[str]] = defaultdict(list)
    for fact, has in one.has.items():
        alike["any" if has.values in EVERY else either(has.values)].append(fact)
    facts = (f"{', '.join(names)}: {values}" for values, names in alike.items())
    base = [f"what {one.base} has"] if one.base not in (None, BASE) else []
    return "; ".join((*base, *facts)) or f"what {one.base} has"


def _never(one: Capabilities) -> str:
    return "; ".join(together(rule.when) for rule in one.never)
