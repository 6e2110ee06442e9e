"""Namespaces as machines: the commands that make them, and that all are removed."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence

import pytest

from benchmarks import namespaces
from benchmarks.namespaces import GBIT, MBIT, Network, NotAllowed, network

NAMES = ("mw-hub", "mw-0", "mw-1")


class Shell:
    """Stands for `ip` and `tc`: keeps what it was told, and fails where it should."""

    def __init__(self, fails_at: str = "nothing") -> None:
        self.fails_at = fails_at
        self.told: list[str] = []

    def __call__(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        line = " ".join(command)
        self.told.append(line)
        failed = self.fails_at in line
        return subprocess.CompletedProcess(
            command, int(failed), "", "Operation not permitted\n" if failed else ""
        )

    @property
    def removed(self) -> set[str]:
        return {line.split()[-1] for line in self.told if "netns del" in line}


def shell(monkeypatch: pytest.MonkeyPatch, fails_at: str = "nothing") -> Shell:
    made = Shell(fails_at)
    monkeypatch.setattr(namespaces, "_run", made)
    monkeypatch.setattr(shutil, "which", lambda tool: f"/sbin/{tool}")
    return made


def test_every_machine_has_a_shaped_link_both_ways(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = shell(monkeypatch)
    with network(2, prefix="mw") as made:
        made.shape(GBIT, 100 * MBIT)
    shaped = [line for line in told.told if "qdisc" in line]
    assert [line.split()[2] for line in shaped] == ["mw-0", "mw-hub", "mw-1", "mw-hub"]
    assert all("rate 1000000kbit" in line for line in shaped[:2])
    assert all("rate 100000kbit" in line for line in shaped[2:])
    assert sum("addr add 10.98.0." in line for line in told.told) == 2
    assert made.inside(1, ["true"]) == ["ip", "netns", "exec", "mw-1", "true"]


def test_a_bucket_holds_a_millisecond_and_a_segment() -> None:
    made = Network(prefix="mw", machines=2)
    fast, *_, slow = (
        int(line[line.index("burst") + 1])
        for line in made.shaped_by([10 * GBIT, 10 * MBIT])
    )
    assert (fast, slow) == (1_250_000, 64 * 1024)


@pytest.mark.parametrize("end", [KeyboardInterrupt, SystemExit, ValueError])
def test_nothing_is_left_however_it_ends(
    end: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    told = shell(monkeypatch)
    with pytest.raises(end), network(2, prefix="mw"):
        raise end
    assert told.removed == {*NAMES}


@pytest.mark.parametrize(
    "fails_at", ["netns add mw-1", "type bridge", "type veth", "up"]
)
def test_what_was_half_made_is_removed_and_the_reason_told(
    fails_at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = shell(monkeypatch, fails_at)
    with (
        pytest.raises(NotAllowed, match=r"not permitted.*CAP_NET_ADMIN"),
        network(2, prefix="mw"),
    ):
        pytest.fail("nothing may run on half a network")
    assert told.removed == {*NAMES}


def test_without_the_tools_it_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    told = shell(monkeypatch)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(NotAllowed, match="'ip' is not here"), network(2):
        pytest.fail("there is no network")
    assert not told.told


@pytest.mark.parametrize("machines", [1, 0, 201])
def test_a_network_has_several_machines(machines: int) -> None:
    with pytest.raises(NotAllowed, match="2 to 200"), network(machines):
        pytest.fail("there is no network")
