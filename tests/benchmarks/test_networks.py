"""The loop on slower and slower networks: what it starts, ends, and concludes."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import networks
from benchmarks.namespaces import MBIT, Network, NotAllowed
from benchmarks.namespaces import network as joined
from benchmarks.networks import Failed, Outcome, Row, everywhere, moved, rates, table

PLAN = Row(name="the plan", predicted_s=1.0, measured_s=1.04)
TP = Row(name="tp", predicted_s=1.8, measured_s=2.0)
FAST = Outcome(network="10gbit", chosen="dp 2", pipeline=False, rows=(PLAN, TP))
SLOW = replace(FAST, network="100mbit", chosen="pp 2", pipeline=True)
MADE = Network(prefix="mw", machines=2)


def test_the_plan_is_held_against_the_best_measured() -> None:
    assert (FAST.loss, FAST.best) == (0.0, PLAN)
    better = replace(FAST, rows=(PLAN, replace(TP, measured_s=1.0)))
    assert better.best.name == "tp"
    assert better.loss == pytest.approx(0.04)
    assert "tp; the plan takes 4.0% longer, within 5%" in table([better])
    worse = replace(FAST, rows=(PLAN, replace(TP, measured_s=0.5)))
    assert "NOT within 5%" in table([worse])


def test_the_table_says_whether_the_choice_moved() -> None:
    assert "gave way to a pipeline at 100mbit" in table([FAST, SLOW])
    assert moved([FAST, FAST]) == "no pipeline was chosen on any network"
    assert moved([SLOW, SLOW]) == "a pipeline was chosen at 100mbit already"
    assert "mean error 6.9%" in table([FAST])


@pytest.mark.parametrize("text", ["", "fast", "1gbit,", "0mbit", "10"])
def test_what_is_no_rate_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is no rate"):
        rates(text)


def here(monkeypatch: pytest.MonkeyPatch, *scripts: str) -> None:
    """Machines that are no namespaces: machine i runs the i-th script."""
    monkeypatch.setattr(
        networks,
        "placed",
        lambda _made, machine, _words: [sys.executable, "-c", scripts[machine]],
    )


def test_every_machine_is_told_where_they_meet_and_has_its_core(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {4, 7})
    words = networks.placed(MADE, 1, networks.command("execute", "plan.json"))
    assert words[:7] == [
        *("ip", "netns", "exec", "mw-1"),
        *("taskset", "--cpu-list", "7"),
    ]
    assert words[-4:] == ["-m", "runtime", "plan.json", "--json"]
    here(monkeypatch, """print('{"on": 0}')""", """print('{"on": 1}')""")
    found = everywhere(MADE, "execute", "plan.json", tmp_path)
    assert found == [{"on": 0}, {"on": 1}]


def test_when_one_fails_all_are_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started: list[subprocess.Popen[bytes]] = []
    kept = networks.wait

    def waiting(some: list[subprocess.Popen[bytes]], what: str, folder: Path) -> None:
        started.extend(some)
        kept(some, what, folder)

    monkeypatch.setattr(networks, "wait", waiting)
    here(monkeypatch, "import time; time.sleep(600)", "raise SystemExit('disk full')")
    with pytest.raises(Failed, match="execute on machine 1 failed: disk full"):
        everywhere(MADE, "execute", "plan.json", tmp_path)
    assert len(started) == 2
    assert all(one.poll() is not None for one in started)


def test_without_the_right_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(_: int) -> None:
        raise NotAllowed("Operation not permitted")

    monkeypatch.setattr(networks, "network", refused)
    monkeypatch.setattr(sys, "argv", ["networks.py"])
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    with pytest.raises(SystemExit) as left:
        networks.main()
    assert left.value.code == "networks: no namespaces here: Operation not permitted"
    assert not capsys.readouterr().out


@pytest.mark.matrix
def test_a_link_is_as_slow_as_it_was_shaped(tmp_path: Path) -> None:
    """Two namespaces, where this machine allows it: 2.5 MB at 20 Mbit/s take 1 s."""
    receive = (
        "import socket, time; server = socket.create_server(('', 29399)); "
        "print('ready', flush=True); link, _ = server.accept(); "
        "began = time.monotonic(); "
        "all(iter(lambda: link.recv(65536), b'')); print(time.monotonic() - began)"
    )
    send = (
        "import socket; link = socket.create_connection(('10.98.0.1', 29399)); "
        "link.sendall(bytes(2_500_000)); link.close()"
    )
    try:
        with joined(2) as made:
            made.shape(20 * MBIT)
            with subprocess.Popen(
                made.inside(0, [sys.executable, "-c", receive]),
                stdout=subprocess.PIPE,
                text=True,
            ) as server:
                assert server.stdout is not None
                assert server.stdout.readline() == "ready\n"
                sending = made.inside(1, [sys.executable, "-c", send])
                subprocess.run(sending, check=True, timeout=60)
                seconds = float(server.stdout.readline())
    except NotAllowed as error:
        pytest.skip(f"no namespaces here: {error}")
    assert 0.8 < seconds < 5.0
