"""Machines on one network, as network namespaces of this one.

Each has a veth pair into a bridge, shaped in both directions by `tc` (a token bucket).
Making them takes the right to administer networks; whatever was made is removed again.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

KBIT, MBIT, GBIT = 10**3, 10**6, 10**9
INTERFACE = "eth0"
SUBNET = "10.98.0"
MOST = 200  # of a /24
# A bucket of a millisecond: at 10 Gbit/s the kernel's timers refill no smaller one in
# time. Never below the largest segment that a veth hands on.
BURST_S = 1e-3
LEAST_BURST_BYTES = 64 * 1024
QUEUE = "100ms"  # what waits longer than that in a link is dropped

Command = tuple[str, ...]


class NotAllowed(Exception):
    """This machine, or this user, makes no network namespaces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """So many machines, `names[i]` at `address(i)`, around a bridge in *hub*."""

    prefix: str
    machines: int

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"{self.prefix}-{number}" for number in range(self.machines))

    @property
    def hub(self) -> str:
        return f"{self.prefix}-hub"

    def address(self, machine: int) -> str:
        return f"{SUBNET}.{machine + 1}"

    def inside(self, machine: int, command: Sequence[str]) -> list[str]:
        """*command* as a process of that machine."""
        return ["ip", "netns", "exec", self.names[machine], *command]

    def made_by(self) -> Iterator[Command]:
        """The commands that make everything but the namespaces."""
        yield _ip(self.hub, "link add br0 type bridge")
        yield _ip(self.hub, "link set br0 up")
        for number, name in enumerate(self.names):
            yield tuple(
                f"ip link add {INTERFACE} netns {name} type veth "
                f"peer name port{number} netns {self.hub}".split()
            )
            own = f"{self.address(number)}/24"
            yield _ip(name, f"addr add {own} dev {INTERFACE}")
            yield _ip(name, "link set lo up")
            yield _ip(name, f"link set {INTERFACE} up")
            yield _ip(self.hub, f"link set port{number} master br0 up")

    def shaped_by(self, bits_per_s: Sequence[float]) -> Iterator[Command]:
        """The commands that set the rate of each machine's link, both ways.

        >>> one = Network(prefix="x", machines=1)
        >>> print(*next(one.shaped_by([GBIT])))
        tc -n x-0 qdisc replace dev eth0 root tbf rate 1000000kbit burst 125000 \
latency 100ms
        """
        for number, (name, rate) in enumerate(zip(self.names, bits_per_s, strict=True)):
            burst = max(int(rate / 8 * BURST_S), LEAST_BURST_BYTES)
            shape = f"root tbf rate {rate / KBIT:.0f}kbit burst {burst} latency {QUEUE}"
            yield _tc(name, f"qdisc replace dev {INTERFACE} {shape}")
            yield _tc(self.hub, f"qdisc replace dev port{number} {shape}")

    def shape(self, *bits_per_s: float) -> None:
        """Set the rate of every link, or of each its own."""
        rates = bits_per_s * self.machines if len(bits_per_s) == 1 else bits_per_s
        for command in self.shaped_by(rates):
            _must(command)


@contextmanager
def network(machines: int, *, prefix: str = "") -> Iterator[Network]:
    """*machines* namespaces, joined; removed when this is left, however it is left.

    Raises NotAllowed, with the reason, where they cannot be made.
    """
    if not 2 <= machines <= MOST:
        raise NotAllowed(f"a network has 2 to {MOST} machines, not {machines}")
    made = Network(prefix=prefix or f"meshwright-{os.getpid()}", machines=machines)
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            raise NotAllowed(f"the command {tool!r} is not here; install iproute2")
    with ExitStack() as stack:
        for name in (made.hub, *made.names):
            # registered first: what Ctrl-C finds half made is removed, too
            stack.callback(_run, ("ip", "netns", "del", name))
            _must(("ip", "netns", "add", name))
        for command in made.made_by():
            _must(command)
        yield made


def _ip(namespace: str, words: str) -> Command:
    return ("ip", "-n", namespace, *words.split())


def _tc(namespace: str, words: str) -> Command:
    return ("tc", "-n", namespace, *words.split())


def _must(command: Command) -> None:
    done = _run(command)
    if done.returncode:
        said = (done.stderr.strip() or "it said nothing").splitlines()[-1]
        raise NotAllowed(
            f"`{' '.join(command)}` failed: {said}; this takes Linux, the right to "
            "administer networks (root, or CAP_NET_ADMIN and CAP_SYS_ADMIN) and the "
            "kernel's veth, bridge and tbf"
        )


def _run(command: Command) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)
