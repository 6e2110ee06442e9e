"""A trace as Perfetto's tables: read strictly by the Trace Event Format, queried by
SQL."""

from __future__ import annotations

import json
import sqlite3
from typing import Any

_NS_OF_US = 1000
NEEDED = {
    "M": {"name", "ph", "pid", "args"},
    "X": {"name", "cat", "ph", "pid", "tid", "ts", "dur"},
    "C": {"name", "ph", "pid", "ts", "args"},
}
METADATA = {
    "process_name": str,
    "process_sort_index": int,
    "thread_name": str,
    "thread_sort_index": int,
}


def tables(text: str) -> sqlite3.Connection:
    """`process`, `thread`, `slice` (times in ns) and `counter`, as Perfetto names them.

    Fails where an event is none of the format, where a slice's thread or a thread's
    process has no name, and where slices of a thread overlap without one holding the
    other (Perfetto drops those).
    """
    document = json.loads(text)
    assert document["displayTimeUnit"] in ("ms", "ns")
    db = sqlite3.connect(":memory:")
    db.executescript(
        "create table process (pid integer primary key, name text);"
        "create table thread (pid integer, tid integer, name text);"
        "create table slice (pid, tid, name text, category text, ts int, dur int);"
        "create table counter (pid integer, name text, ts int, value real);"
    )
    for event in document["traceEvents"]:
        _insert(db, event)
    _require_named(db)
    _require_nested(db)
    return db


def _insert(db: sqlite3.Connection, event: dict[str, Any]) -> None:
    kind = event["ph"]
    needed = NEEDED[kind]
    assert needed <= event.keys() <= needed | {"tid", "args"}, event
    assert type(event["pid"]) is int
    assert isinstance(event["name"], str)
    if kind == "M":
        ((_, value),) = event["args"].items()
        assert isinstance(value, METADATA[event["name"]]), event
        if event["name"] == "process_name":
            db.execute("insert into process values (?, ?)", (event["pid"], value))
        elif event["name"] == "thread_name":
            row = event["pid"], event["tid"], value
            db.execute("insert into thread values (?, ?, ?)", row)
        return
    assert event["ts"] >= 0
    if kind == "C":
        ((name, value),) = event["args"].items()
        counted = event["pid"], f"{event['name']} {name}", _ns(event["ts"]), value
        db.execute("insert into counter values (?, ?, ?, ?)", counted)
        return
    assert event["dur"] >= 0
    start, end = _ns(event["ts"]), _ns(event["ts"] + event["dur"])
    where = event["pid"], event["tid"], event["name"], event["cat"]
    db.execute("insert into slice values (?,?,?,?,?,?)", (*where, start, end - start))


def _ns(us: float) -> int:
    return round(us * _NS_OF_US)


def _require_named(db: sqlite3.Connection) -> None:
    nameless = (
        (
            "select * from slice left join thread using (pid, tid) "
            "where thread.name is null"
        ),
        "select * from thread left join process using (pid) where process.name is null",
        (
            "select * from counter left join process using (pid) "
            "where process.name is null"
        ),
    )
    for query in nameless:
        assert db.execute(query).fetchall() == []


def _require_nested(db: sqlite3.Connection) -> None:
    open_until: list[int] = []
    thread = None
    ordered = "select pid, tid, ts, dur from slice order by pid, tid, ts, dur desc"
    for pid, tid, start, dur in db.execute(ordered):
        if (pid, tid) != thread:
            thread, open_until = (pid, tid), []
        while open_until and open_until[-1] <= start:
            open_until.pop()
        assert not open_until or start + dur <= open_until[-1], (pid, tid, start)
        open_until.append(start + dur)
