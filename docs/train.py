"""A model and a loop of one's own, by a layout of `plan --out layout.json`:

torchrun --standalone --nproc-per-node 4 train.py layout.json

As many processes as the layout has ranks, on the machine's cores. The module has as
many layers as the layout; what no loop of one's own carries out is said in a line.
"""

import sys
from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

import runtime
from costmodel.layout.layout import Layout
from profiles.errors import MeshwrightError, Unsupported
from runtime.api import clip_gradients, data_rank, layout_of, optimizer


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.product = nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, stream: Tensor) -> Tensor:
        return stream + F.gelu(self.product(self.norm(stream)))


def loss_of(out: Tensor, wanted: Tensor) -> Tensor:
    return F.cross_entropy(out.mT.float(), wanted)


def train(layout: Layout) -> float:
    if "fp16" in layout.precision_name:
        raise Unsupported("this loop has no GradScaler: plan with --precision bf16")
    torch.manual_seed(0)
    count = sum(name.isdigit() for stage in layout.stages for name in stage.layers)
    layers = [Layer(64) for _ in range(count)]
    module = nn.Sequential(nn.Embedding(512, 64), *layers, nn.Linear(64, 512))
    model = runtime.parallelize(module, layout, loss=loss_of)
    update = optimizer(
        model, layout, partial(torch.optim.AdamW, lr=1e-2, foreach=False)
    )
    ranks, pieces = layout.stages[0].mesh.dp, layout.micro_batches
    tokens = torch.arange(8 * ranks * pieces * 33).view(-1, 33) % 97
    tokens = tokens.chunk(ranks)[data_rank(layout)]  # this rank's part of the batch
    for _ in range(20):
        update.zero_grad()
        if layout.pp > 1:
            loss = model.step(tokens[:, :-1], tokens[:, 1:])
        else:
            loss = torch.zeros(())
            for piece in tokens.chunk(pieces):
                part = loss_of(model(piece[:, :-1]), piece[:, 1:]) / pieces
                part.backward()
                loss += part.detach()
        clip_gradients(model, layout, 1.0, updated=update)
        update.step()
    return float(loss)


dist.init_process_group("gloo")
try:
    last = train(layout_of(sys.argv[1]))
except MeshwrightError as error:
    sys.exit(f"train.py: {error}" if dist.get_rank() == 0 else 2)
if dist.get_rank() == 0:
    print(f"loss {last:.4f}")
dist.barrier()  # nobody leaves while a message is under way
dist.destroy_process_group()
