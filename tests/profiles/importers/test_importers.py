"""`profiles.importers`: topologies and logs as other tools print them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiles.cli import profile
from profiles.errors import (
    Contradiction,
    InvalidFile,
    InvalidQuestion,
    MeshwrightError,
)
from profiles.hardware import Cluster, cluster, parse_cluster
from profiles.importers import Known, import_files
from profiles.samples import CollectiveKey, Samples

Write = Callable[[str, str], Path]
# DGX-1 with V100: a cube of NVLinks, six a GPU.
CUBE = {
    (0, 1): 1, (0, 2): 1, (0, 3): 2, (0, 4): 2, (1, 2): 2, (1, 3): 1, (1, 5): 2,
    (2, 3): 1, (2, 6): 2, (3, 7): 2, (4, 5): 1, (4, 6): 1, (4, 7): 2, (5, 6): 2,
    (5, 7): 1, (6, 7): 1,
}  # fmt: skip


def matrix(links: Callable[[int, int], str], gpus: int = 8, nics: int = 4) -> str:
    """The output of `nvidia-smi topo -m`, with its escapes and its legend."""
    names = [f"GPU{one}" for one in range(gpus)]
    cards = [f"NIC{one}" for one in range(nics)]
    lines = ["\x1b[4m\t" + "\t".join([*names, *cards, "CPU Affinity"]) + "\x1b[0m"]
    for one, name in enumerate(names):
        cells = [links(one, two) if one != two else " X " for two in range(gpus)]
        lines.append("\t".join([name, *cells, *["SYS"] * nics, "0-47\t0\t\tN/A"]))
    for one, name in enumerate(cards):
        cells = [" X " if one == two else "NODE" for two in range(nics)]
        lines.append("\t".join([name, *["SYS"] * gpus, *cells]))
    legend = ["", "Legend:", "", "  X    = Self", "NIC Legend:", "", "  NIC0: mlx5_0"]
    return "\n".join([*lines, *legend])


def cube(one: int, two: int) -> str:
    count = CUBE.get((min(one, two), max(one, two)))
    return f"NV{count}" if count else "SYS"


def topology(gpus: int = 8, nics: int = 8, sm: int = 90, links: str = "") -> str:
    """A topology as NCCL dumps it: GPUs with 18 NVLinks to switches."""
    whole = '<nvlink target="ffff:ff:ff" count="18" tclass="0x068000"/>'
    cards = "".join(
        f'<pci busid="0000:{0x40 + one:02x}:00.0" class="0x068000"><gpu dev="{one}" '
        f'sm="{sm}" rank="{one}" gdr="1">{links or whole}</gpu></pci>'
        for one in range(gpus)
    )
    nets = "".join(
        f'<pci busid="0000:{0x80 + one:02x}:00.0" class="0x020700"><nic><net '
        f'name="mlx5_{one}" dev="{one}" speed="400000" port="1"/></nic></pci>'
        for one in range(nics)
    )
    cpu = f'<cpu host_hash="0x1" numaid="0" arch="x86_64">{cards}{nets}</cpu>'
    return f'<system version="1">{cpu}</system>'


def log(
    test: str = "all_reduce",
    hosts: Sequence[int] = (8,),
    gpu: str = "NVIDIA H100 80GB HBM3",
    rows: Sequence[tuple[int, float]] = ((1048576, 60.0), (1073741824, 4100.0)),
) -> str:
    places = [(host, gpu_) for host, count in enumerate(hosts) for gpu_ in range(count)]
    head = f"""\
# Collective test starting: {test}_perf
# nThread 1 nGpus 1 minBytes 8 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1
#
# Using devices
"""
    ranks = "".join(
        f"#  Rank {rank:2} Group  0 Pid 77{rank} on node{host} device {place:2} "
        f"[0000:0{place}:00] {gpu}\n"
        for rank, (host, place) in enumerate(places)
    )
    table = """\
#  size  count  type  redop  root  time  algbw  busbw #wrong  time  algbw  busbw #wrong
#   (B)  (elements)                (us)  (GB/s) (GB/s)        (us)  (GB/s) (GB/s)
"""
    body = "".join(
        f"{size:12} {size // 4:12} float sum -1 {us:8.1f} 1.0 1.0 0 {us * 1.05:8.1f} "
        "1.0 1.0 0\n"
        for size, us in rows
    )
    return head + ranks + table + body + "# Avg bus bandwidth    : 412.1\n"


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def put(name: str, text: str) -> Path:
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return put


def only(found: Samples) -> Cluster:
    assert found.cluster is not None
    return found.cluster


def test_switches_join_all_gpus_at_the_rate_of_all_links(write: Write) -> None:
    path = write("topo.txt", matrix(lambda *_: "NV12"))
    known = Known(gpu="a100-80gb", nic_gbit_per_s=200.0)
    inner, outer = only(import_files([path], known)).island.levels
    catalogue = cluster("dgx-a100-80gb").island.levels[0]
    assert (inner.kind, inner.devices) == ("nvswitch", 8)
    assert inner.bytes_per_s == catalogue.bytes_per_s == 300e9
    assert outer.bytes_per_s == 4 * 200e9 / 8 / 8
    assert outer.ports == 4


def test_a_cube_of_links_is_the_sum_over_a_gpus_peers(write: Write) -> None:
    path = write("topo.txt", matrix(cube))
    known = Known(gpu="V100-SXM-32GB", nic_gbit_per_s=100.0)
    island = only(import_files([path], known)).island
    theirs = cluster("dgx-v100-32gb").island
    assert island.levels[0].kind == "nvlink"
    assert [one.bytes_per_s for one in island.levels] == [
        one.bytes_per_s for one in theirs.levels
    ]
    assert island.levels[1].ports == theirs.levels[1].ports


def test_bridged_pairs_are_domains_inside_pcie(write: Write) -> None:
    path = write("topo.txt", matrix(lambda a, b: "NV12" if a // 2 == b // 2 else "SYS"))
    known = Known(gpu="A100-PCIe-80GB", nic_gbit_per_s=100.0)
    levels = only(import_files([path], known)).island.levels
    assert [(one.kind, one.devices) for one in levels] == [
        ("nvlink", 2),
        ("pcie", 8),
        ("infiniband", None),
    ]


def test_nccls_topology_has_the_rates_of_nics(write: Write) -> None:
    found = only(import_files([write("topo.xml", topology())], Known(gpu="h100")))
    assert found.island.levels[0].bytes_per_s == 450e9
    assert found.island.levels[1].bytes_per_s == 50e9
    assert found.device.name == "H100-SXM-80GB"
    with pytest.raises(InvalidQuestion, match=r"--gpu: .*H100-SXM-80GB, .*H200"):
        import_files([write("topo.xml", topology())], Known())


def test_files_fill_in_what_others_leave_open(write: Write) -> None:
    paths = [
        write("topo.txt", matrix(lambda *_: "NV18", nics=8)),
        write("topo.xml", topology()),
        write("log.txt", log()),
    ]
    found = import_files(paths, Known(nodes=4))
    assert only(found).gpus == 32
    assert only(found).device.name == "H100-SXM-80GB"
    key = CollectiveKey(
        fabric="nvswitch", collective="all_reduce", ranks=(8,), size_bytes=1073741824
    )
    sample = found.collectives[key]
    assert sample.seconds == pytest.approx(4.1e-3)
    assert sample.spread == pytest.approx(0.05)
    assert sample.repeats == 20


def test_logs_alone_are_of_the_links_of_a_named_cluster(write: Write) -> None:
    path = write("run.txt", log("alltoall", hosts=(8, 8)))
    with pytest.raises(InvalidQuestion, match="--links-of"):
        import_files([path], Known())
    found = import_files([path], Known(cluster=cluster("dgx-h100")))
    (one, *_) = found.collectives
    assert (one.collective, one.ranks) == ("all_to_all", (8, 2))
    assert one.fabric == cluster("dgx-h100").island.levels[-1].kind
    with pytest.raises(Contradiction, match=r"H100-SXM-80GB.*A100"):
        import_files([path], Known(cluster=cluster("dgx-a100-80gb")))


def test_an_imported_log_is_what_is_priced(
    write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A slower network of the log makes the step slower, and nothing else changes."""
    import costmodel

    rows = [(2**20, 1e3), (2**30, 1e6)]
    write(
        "fast.txt", log("all_reduce", hosts=(8, 8), rows=[(s, u / 50) for s, u in rows])
    )
    write("slow.txt", log("all_reduce", hosts=(8, 8), rows=rows))
    times = []
    for name in ("fast", "slow"):
        out = tmp_path / f"{name}.json"
        argv = ["--import", str(tmp_path / f"{name}.txt"), "--out", str(out)]
        assert profile.run([*argv, "--links-of", "dgx-h100", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["collectives"] == 2
        found = costmodel.simulate(
            "gpt-1.3b", gpus=16, cluster="dgx-h100", dp=16, zero=0, profile=[out]
        )
        times.append(found.step_time_s)
    assert times[1] > times[0] * 1.2


@pytest.mark.parametrize(
    ("name", "text", "error", "said"),
    [
        ("a.txt", "hello", InvalidFile, "none of what is read"),
        ("a.txt", matrix(lambda a, b: "NV12" if {a, b} != {2, 5} else "N/A"),
         InvalidFile, "a link is missing"),
        ("a.txt", matrix(lambda a, b: "NV12" if a != 2 or b != 5 else "NV11"),
         InvalidFile, "do not say the same"),
        ("a.txt", matrix(cube).replace("\nGPU7\t", "\nGPUX\t"), InvalidFile,
         "no row for GPU7"),
        ("a.txt", matrix(lambda a, b: "SYS" if {a, b} == {0, 3} else cube(a, b)),
         InvalidFile, "GPU 0 has 4"),
        ("a.xml", topology(gpus=0), InvalidFile, "has 0 GPUs"),
        ("a.xml", topology()[:-9], InvalidFile, "not whole XML"),
        ("a.xml", '<!DOCTYPE a [<!ENTITY b "c">]>' + topology(), InvalidFile,
         "declares entities"),
        ("a.xml", topology(links='<nvlink target="0000:99:00.0" count="4"/>'),
         InvalidFile, "is a GPU missing"),
        ("a.xml", topology().replace("400000", "fast"), InvalidFile, "speed='fast'"),
        ("a.xml", topology().replace('sm="90" rank="3"', 'sm="80" rank="3"'),
         InvalidFile, "2 kinds"),
        ("a.txt", log(hosts=(8, 4)), InvalidFile, "hosts have [4, 8] ranks"),
        ("a.txt", log().replace("all_reduce", "reduce"), InvalidFile,
         "does not say which test"),
        ("a.txt", log(hosts=()), InvalidFile, "lists no ranks"),
        ("a.txt", log(rows=()), InvalidFile, "no rows"),
        ("a.txt", log(gpu="NVIDIA Thing X1"), Contradiction, "nvidia-thing-x1"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_file_is_said(
    name: str, text: str, error: type[Exception], said: str, write: Write
) -> None:
    known = Known(gpu="V100-SXM-32GB", nic_gbit_per_s=1.0, cluster=cluster("dgx-h100"))
    with pytest.raises(error) as caught:
        import_files([write(name, text)], known)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@settings(deadline=None, max_examples=150)
@given(
    text=st.sampled_from([matrix(cube), topology(gpus=2, nics=1), log()]),
    cut=st.floats(0, 1),
    length=st.integers(0, 40),
    put=st.text(max_size=8),
)
def test_a_damaged_file_is_read_or_refused(
    text: str,
    cut: float,
    length: int,
    put: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    place = int(cut * len(text))
    path = tmp_path_factory.mktemp("damaged") / "file"
    path.write_text(text[:place] + put + text[place + length :], errors="replace")
    known = Known(gpu="h100", nic_gbit_per_s=1.0, cluster=cluster("dgx-h100"))
    with suppress(MeshwrightError):
        assert import_files([path], known).cluster is not None


def test_the_command_writes_a_file_that_the_others_read(
    write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, made = write("topo.xml", topology()), tmp_path / "ours.json"
    argv = ["--import", str(source), "--gpu", "h100", "--nnodes", "3"]
    assert profile.run([*argv, "--cluster", str(made)]) == 0
    found = parse_cluster(json.loads(made.read_text()), what="file")
    assert (found.name, found.gpus) == ("ours", 24)
    assert found == cluster(str(made))
    capsys.readouterr()
    for more, said in (
        (["--out", str(tmp_path / "samples.json")], "log of nccl-tests"),
        (["--cluster", str(source)], "read for this answer"),
    ):
        assert profile.run([*argv, *more]) == 2
        assert said in capsys.readouterr().err
    assert profile.run(["--cluster", str(made), "--gpu", "h100"]) == 2
    assert "--import" in capsys.readouterr().err
