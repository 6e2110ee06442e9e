"""A row of a table of runs in which every cell says something."""

from __future__ import annotations

from typing import Final

# A small GPT with everything said.
FULL: Final = {
    "model": "some GPT",
    "layers": "4",
    "hidden": "1024",
    "heads": "16",
    "kv_heads": "16",
    "head_dim": "64",
    "ffn_hidden": "4096",
    "gated_mlp": "n",
    "tied_embeddings": "y",
    "vocab": "51200",
    "seq_len": "1024",
    "experts": "",
    "kind": "dense",
    "task": "pretrain",
    "cluster": "dgx-a100-80gb",
    "device": "A100-SXM-80GB",
    "gpus": "16",
    "gpus_per_node": "8",
    "intra_node_gb_per_s": "300",
    "inter_node_gbit_per_s": "1600",
    "precision": "bf16",
    "tp": "2",
    "pp": "2",
    "dp": "4",
    "cp": "1",
    "ep": "1",
    "virtual_stages": "1",
    "zero": "1",
    "zero_group": "4",
    "sequence_parallel": "y",
    "micro_batch": "2",
    "global_batch": "64",
    "recompute": "full",
    "attention_kernel": "flash-2",
    "flash_attention": "y",
    "fused_norm": "y",
    "schedule": "1f1b",
    "offload": "none",
    "framework": "Megatron-LM",
}
