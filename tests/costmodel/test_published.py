"""`benchmarks.fit.published` and `published_aceso`: tables of a few made-up rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.fit import published, published_aceso
from profiles.errors import InvalidFile
from profiles.hardware.precisions import Format

GEMM = """device,op,dtype,batch,m,n,k,extra,tflops
x,matmul,bf16,1,1000,1000,1000,"layout=NT, accumulate=True, out_dtype=fp32",100
x,matmul,bf16,2,1000,1000,500,"layout=TN, accumulate=False, out_dtype=bf16",100
x,gemm,fp8 (fine-grained scaling),1,100,100,100,,2
x,sdp_fwd,bf16,1,,,,"batch=2, seq_len=1000, head_num=4, qk_head_dim=96, v_head_dim=8",10
x,sdp_bwd,bf16,1,,,,"batch=2, seq_len=1000, head_num=4, qk_head_dim=96, v_head_dim=8",10
y,sdp_fwd,bf16,1,,,,"batch=2",10
"""
COLLECTIVES = """device,collective,gpus,nodes,size_bytes,busbw_GBps,conditions,source
x,all_reduce,4,1,1000000000,100,alone,here
x,all_reduce,4,1,large,100,alone,here
x,all_reduce,4,1,1000000000,,alone,here
x,all_reduce,4,1,1000000000,100,alone,yonder
x,p2p,2,2,1000000000,10,alone,here
"""
LAYERS = """model,item,fwd_ms,bwd_ms
gpt_6_7B_mbs2_tp4_algo0,enc-MLP-GEMM-1,1.5,9
gpt_6_7B_mbs2_tp4_algo0,enc-MLP-GEMM-2,9,3.0
gpt_6_7B_mbs2_tp4_algo0,enc-attention-dense,9,0.1
gpt_6_7B_mbs2_tp4_algo0,enc-attention-softmax,1,2
gpt_6_7B_mbs2_tp4_algo0,enc-attention-dropout,3,4
gpt_6_7B_mbs2_tp4_algo0,enc-MLP-gelu,0.5,0.1
gpt_6_7B_mbs2_tp4_algo1,enc-MLP-GEMM-1,9,9
t5_mbs1_tp1,enc-MLP-GEMM-1,9,9
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "hw_gemm.csv").write_text(GEMM)
    (tmp_path / "hw_collectives.csv").write_text(COLLECTIVES)
    (tmp_path / "layer_times.csv").write_text(LAYERS)
    (tmp_path / "hw.csv").write_text("device,metric,value\nx,speed,3.5\n")
    return tmp_path


def test_products_have_seconds_and_output_bytes(folder: Path) -> None:
    table = published.products(folder, "x")
    assert table.seconds == pytest.approx([2e9 / 1e14, 2e9 / 1e14])
    assert table.output_bytes[:, 0] == pytest.approx([8.0, 2.0])
    assert (len(table), table.number) == (2, Format.BF16)
    assert published.products(folder, "x", "gemm").number == Format.FP8


@pytest.mark.parametrize(("direction", "flops"), [("forward", 1), ("backward", 2.5)])
def test_attention_counts_the_square(
    folder: Path, direction: str, flops: float
) -> None:
    table = published.attention(folder, "x", direction)
    assert table.seconds == pytest.approx([flops * 2 * 8 * 1e6 * 104 / 1e13])
    assert (table.batch_heads[0], table.sequence[0], table.head_dim[0]) == (
        8,
        1000,
        96,
    )


def test_collectives_turn_bus_bandwidth_into_seconds(folder: Path) -> None:
    table = published.collectives(folder, "x", source="here", note="alone")
    assert table.seconds == pytest.approx([0.015]), "2 x 3/4 of 1 GB at 100 GB/s"
    sends = published.collectives(folder, "x", source="here", kind="p2p")
    assert sends.seconds == pytest.approx([0.1])
    assert sends.nodes == pytest.approx([2])


def test_aceso_products_leave_collectives_out(folder: Path) -> None:
    table = published_aceso.products(folder)
    assert table.seconds == pytest.approx([1.5e-3, 3.0e-3]), "0.1 ms is the host's"
    assert table.m.tolist() == [[4096, 1], [4096, 4096]]
    assert table.n.tolist() == [[4096, 1], [4096, 4096]]
    assert table.counts.tolist() == [[1, 0], [1, 1]]


def test_aceso_traffic_and_scores(folder: Path) -> None:
    scores = 2 * 2048 * 2048 * 32 / 4
    table = published_aceso.traffic(folder)
    assert table.size_bytes == pytest.approx([5 * scores, 5 * scores, 16 * 4096**2 / 4])
    assert table.seconds == pytest.approx([3e-3, 4e-3, 0.5e-3])
    both = published_aceso.scores(folder, "backward")
    assert both.size_bytes == pytest.approx([scores])
    assert both.seconds == pytest.approx([6e-3])


def test_single_figures_are_found_or_missed(folder: Path) -> None:
    assert published.single_figure(folder, "x", "speed") == 3.5
    with pytest.raises(InvalidFile, match="mass"):
        published.single_figure(folder, "x", "mass")


def test_missing_tables_and_members_are_told(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidFile, match="MESHWRIGHT_DATA"):
        published.rows(tmp_path / "absent", "hw.csv")
    with pytest.raises(InvalidFile, match="seq_len is missing"):
        published.attention(folder, "y", "forward")
