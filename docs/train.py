"""A model and a loop of one's own, by a layout of `plan --out layout.json`:

torchrun --standalone --nproc-per-node 4 train.py layout.json
"""

import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import runtime
from runtime.parallelize import clip_gradients, layout_of


def layer(width: int) -> nn.Module:
    return nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU())


dist.init_process_group("gloo")
torch.manual_seed(0)  # the same first values every time
layers = [layer(64) for _ in range(4)]
module = nn.Sequential(nn.Embedding(512, 64), *layers, nn.Linear(64, 512))
layout = layout_of(sys.argv[1])
model = runtime.parallelize(
    module, layout, loss=lambda out, wanted: F.cross_entropy(out.mT, wanted)
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
tokens = torch.arange(8 * 33).view(8, 33) % 97
for _ in range(20):
    loss = model.step(tokens[:, :-1], tokens[:, 1:])
    clip_gradients(model, layout, 1.0)
    optimizer.step()
if dist.get_rank() == 0:
    print(f"loss {loss:.4f}")
dist.barrier()  # nobody leaves while a message is under way
dist.destroy_process_group()
