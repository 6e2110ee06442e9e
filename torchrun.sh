#!/bin/bash
# llama2-7b on 4 GPUs: tp 1 · cp 1 · pp 4 · ep 1 · dp 1 · zero 0 · 32 micro-batches of 1
# Run it on every node, with MASTER_ADDR set; --data names your file.
set -euo pipefail
meshwright execute layout.json --data synthetic --steps 100
