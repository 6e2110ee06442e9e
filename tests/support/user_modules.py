"""Modules as users write them, by factories: `tests.support.user_modules:unet`."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Bottleneck(nn.Module):
    def __init__(self, given: int, width: int, stride: int, wide: int = 1) -> None:
        super().__init__()
        out = 4 * width
        self.conv1 = nn.Conv2d(given, wide * width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(wide * width)
        self.conv2 = nn.Conv2d(
            wide * width, wide * width, 3, stride, padding=1, bias=False
        )
        self.bn2 = nn.BatchNorm2d(wide * width)
        self.conv3 = nn.Conv2d(wide * width, out, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(out)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride != 1 or given != out:
            self.downsample = nn.Sequential(
                nn.Conv2d(given, out, 1, stride, bias=False), nn.BatchNorm2d(out)
            )

    def forward(self, x: Tensor) -> Tensor:
        kept = x if self.downsample is None else self.downsample(x)
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.relu(self.bn2(self.conv2(x)))
        made: Tensor = self.relu(self.bn3(self.conv3(x)) + kept)
        return made


class ResNet(nn.Module):
    """He et al. (2016), or Zagoruyko and Komodakis's (2016) with `wide` inside."""

    def __init__(
        self,
        blocks: tuple[int, ...] = (2, 2, 2, 2),
        width: int = 16,
        size: int = 64,
        classes: int = 10,
        wide: int = 1,
    ) -> None:
        super().__init__()
        self.size, self.classes = size, classes
        self.conv1 = nn.Conv2d(3, width, 7, 2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        given, stages = width, []
        for number, count in enumerate(blocks):
            made = []
            for place in range(count):
                stride = 2 if place == 0 and number > 0 else 1
                made.append(Bottleneck(given, width * 2**number, stride, wide))
                given = 4 * width * 2**number
            stages.append(nn.Sequential(*made))
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        self.fc = nn.Linear(given, classes)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 3, 2, padding=1)
        for stage in (self.layer1, self.layer2, self.layer3, self.layer4):
            x = stage(x)
        return F.cross_entropy(self.fc(x.mean((2, 3))), labels)

    def example_inputs(self) -> tuple[Tensor, Tensor]:
        images = torch.randn(1, 3, self.size, self.size)
        return images, torch.randint(self.classes, (1,))


class Double(nn.Module):
    def __init__(self, given: int, out: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv3d(given, out, 3, padding=1)
        self.norm1 = nn.InstanceNorm3d(out, affine=True)
        self.conv2 = nn.Conv3d(out, out, 3, padding=1)
        self.norm2 = nn.InstanceNorm3d(out, affine=True)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(x)))


class Unet(nn.Module):
    """A 3-D U-Net (Çiçek et al., 2016): what each level makes on the way down is read
    on the way up."""

    def __init__(self, depth: int = 3, features: int = 8, size: int = 16) -> None:
        super().__init__()
        self.size = size
        wide = [features * 2**level for level in range(depth + 1)]
        self.downs = nn.ModuleList(
            Double(given, out)
            for given, out in zip([1, *wide], wide[:-1], strict=False)
        )
        self.middle = Double(wide[-2], wide[-1])
        levels = list(reversed(range(depth)))
        self.ups = nn.ModuleList(
            nn.ConvTranspose3d(wide[level + 1], wide[level], 2, 2) for level in levels
        )
        self.joins = nn.ModuleList(Double(wide[n + 1], wide[n]) for n in levels)
        self.out = nn.Conv3d(features, 2, 1)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        skips = []
        for down in self.downs:
            x = down(x)
            skips.append(x)
            x = F.max_pool3d(x, 2)
        x = self.middle(x)
        for up, join, skip in zip(self.ups, self.joins, reversed(skips), strict=True):
            x = join(torch.cat([up(x), skip], 1))
        return F.cross_entropy(self.out(x), labels)

    def example_inputs(self) -> tuple[Tensor, Tensor]:
        shape = (self.size,) * 3
        return torch.randn(1, 1, *shape), torch.randint(2, (1, *shape))


class Dlrm(nn.Module):
    """Naumov et al. (2019): tables of categories, and what dense features meet."""

    def __init__(self, tables: int = 8, rows: int = 1000, width: int = 64) -> None:
        super().__init__()
        self.count, self.rows = tables, rows
        self.tables = nn.ModuleList(
            nn.EmbeddingBag(rows, width, mode="sum") for _ in range(tables)
        )
        self.bottom = nn.Sequential(
            nn.Linear(13, 256), nn.ReLU(), nn.Linear(256, width), nn.ReLU()
        )
        several = tables + 1
        self.top = nn.Sequential(
            nn.Linear(width + several * (several - 1) // 2, 256),
            nn.ReLU(),
            nn.Linear(256, 1),
        )
        pairs = torch.tril_indices(several, several, -1)
        self.rows_of: Tensor
        self.columns_of: Tensor
        self.register_buffer("rows_of", pairs[0])
        self.register_buffer("columns_of", pairs[1])

    def forward(self, dense: Tensor, sparse: Tensor, clicks: Tensor) -> Tensor:
        x = self.bottom(dense)
        met = [table(sparse[:, n]) for n, table in enumerate(self.tables)]
        every = torch.stack([x, *met], 1)
        products = every @ every.transpose(1, 2)
        crossed = products[:, self.rows_of, self.columns_of]
        logits = self.top(torch.cat([x, crossed], 1))[:, 0]
        return F.binary_cross_entropy_with_logits(logits, clicks)

    def example_inputs(self) -> tuple[Tensor, Tensor, Tensor]:
        sparse = torch.randint(self.rows, (1, self.count, 4))
        return torch.randn(1, 13), sparse, torch.rand(1)


class Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, 32)
        self.lstm = nn.LSTM(32, 64, 2, batch_first=True)
        self.head = nn.Linear(64, 100)

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        made, _ = self.lstm(self.embed(tokens))
        return F.cross_entropy(self.head(made).flatten(0, 1), labels.flatten())

    def example_inputs(self) -> tuple[Tensor, Tensor]:
        return torch.randint(100, (1, 24)), torch.randint(100, (1, 24))


class Odd(nn.Module):
    """A layer that all blocks share, and a skip over all of them; no loss."""

    def __init__(self) -> None:
        super().__init__()
        self.given = nn.Linear(16, 32)
        self.shared = nn.Linear(32, 32)
        self.blocks = nn.ModuleList(nn.Linear(32, 32) for _ in range(4))
        self.out = nn.Linear(64, 4)

    def forward(self, x: Tensor) -> Tensor:
        hidden = first = self.given(x)
        for block in self.blocks:
            hidden = torch.tanh(self.shared(hidden)) + block(hidden)
        made: Tensor = self.out(torch.cat([first, hidden], -1))
        return made


class Attention(nn.Module):
    """By hand: a product, softmax, a product."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.width = hidden // heads
        self.query = nn.Linear(hidden, hidden)
        self.key = nn.Linear(hidden, hidden)
        self.value = nn.Linear(hidden, hidden)
        self.out = nn.Linear(hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        query, key, value = (
            one(x).view(batch, length, -1, self.width).transpose(1, 2)
            for one in (self.query, self.key, self.value)
        )
        scores = query @ key.transpose(-1, -2) / self.width**0.5
        later = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        shares = scores.masked_fill(later, float("-inf")).softmax(-1)
        mixed = (shares @ value).transpose(1, 2).reshape(batch, length, -1)
        return self.out(mixed)  # type: ignore[no-any-return]


class ByHand(nn.Module):
    """Attention by hand, and one weight for table and head."""

    def __init__(self, layers: int = 3, hidden: int = 64, heads: int = 4) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, hidden)
        self.layers = nn.ModuleList(Attention(hidden, heads) for _ in range(layers))
        self.head = nn.Linear(hidden, 50, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        x = self.embed(tokens) * 0.1
        for layer in self.layers:
            x = x + layer(x)
        return F.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())

    def example_inputs(self) -> tuple[Tensor, Tensor]:
        return torch.randint(50, (1, 20)), torch.randint(50, (1, 20))


def resnet() -> nn.Module:
    return ResNet()


def wide_resnet() -> nn.Module:
    return ResNet(blocks=(1, 1, 1, 1), width=8, size=64, wide=2)


class BeforeIt(nn.Module):
    """A block that norms before it convolves, as Wide-ResNets of CIFAR do."""

    def __init__(self, given: int, out: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(given)
        self.conv1 = nn.Conv2d(given, out, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, padding=1, bias=False)
        self.short = None
        if given != out:
            self.short = nn.Conv2d(given, out, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        normed = F.relu(self.bn1(x))
        kept = x if self.short is None else self.short(normed)
        made: Tensor = self.conv2(F.relu(self.bn2(self.conv1(normed))))
        return made + kept


class WideResNet(nn.Module):
    """Zagoruyko and Komodakis (2016), table 1: three groups on images of 32 x 32."""

    def __init__(self, depth: int, wide: int, classes: int = 10) -> None:
        super().__init__()
        blocks: list[nn.Module] = []
        given = 16
        for number in range(3):
            out = 16 * wide * 2**number
            for place in range((depth - 4) // 6):
                blocks.append(BeforeIt(given, out, 1 + (number > 0 and place == 0)))
                given = out
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.blocks = nn.Sequential(*blocks)
        self.bn1 = nn.BatchNorm2d(given)
        self.fc = nn.Linear(given, classes)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.blocks(self.conv1(x))))
        return F.cross_entropy(self.fc(x.mean((2, 3))), labels)

    def example_inputs(self) -> tuple[Tensor, Tensor]:
        return torch.randn(1, 3, 32, 32), torch.randint(10, (1,))


def wrn_28_2() -> nn.Module:
    return WideResNet(28, 2)


def unet() -> nn.Module:
    return Unet()


def dlrm() -> nn.Module:
    return Dlrm()


def lstm() -> nn.Module:
    return Lstm()


def odd() -> tuple[nn.Module, Tensor]:
    return Odd(), torch.randn(1, 5, 16)


def by_hand() -> nn.Module:
    return ByHand()


NOT_A_FACTORY = 3


def no_module() -> Any:
    return 3


def no_inputs() -> nn.Module:
    return nn.Linear(2, 2)


def raises() -> nn.Module:
    raise ValueError("no weights here")


def leaves() -> nn.Module:
    raise SystemExit(3)


class Places(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scores = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.argmax(self.scores(x), dim=-1)


def gives_places() -> tuple[nn.Module, Tensor]:
    return Places(), torch.randn(1, 4)


class Branches(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            return x * 2
        return x


def branches() -> tuple[nn.Module, Tensor]:
    return Branches(), torch.randn(1, 4)


class Selects(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        chosen = x[x > 0]
        return chosen.view(-1, 2).sum()


def selects() -> tuple[nn.Module, Tensor]:
    return Selects(), torch.randn(1, 4)


class Fixes(nn.Module):
    """Takes batches of three alone."""

    def forward(self, x: Tensor) -> Tensor:
        return x.view(3, 4) + torch.zeros(3, 4, device=x.device)


def fixes() -> tuple[nn.Module, Tensor]:
    return Fixes(), torch.randn(1, 4)


class Wrong(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x @ x


def wrong() -> tuple[nn.Module, Tensor]:
    return Wrong(), torch.randn(1, 4)


@torch.library.custom_op("meshwright_tests::swirl", mutates_args=())
def swirl(x: Tensor) -> Tensor:
    """A kernel of one's own."""
    return x.roll(1, -1)


@swirl.register_fake
def _swirled(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def _swirl_back(context: Any, gradient: Tensor) -> Tensor:
    return gradient.roll(-1, -1)


swirl.register_autograd(_swirl_back)


class Custom(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = swirl(layer(x))
        return x


def custom() -> tuple[nn.Module, Tensor]:
    return Custom(), torch.randn(1, 64)


def resnet_50() -> nn.Module:
    return ResNet(blocks=(3, 4, 6, 3), width=64, size=224, classes=1000)


def wide_resnet_50() -> nn.Module:
    return ResNet(blocks=(3, 4, 6, 3), width=64, size=224, classes=1000, wide=2)


class Fused(nn.Module):
    """Queries, keys and values side by side in one product, one layer after another."""

    def __init__(self, hidden: int = 64, heads: int = 4) -> None:
        super().__init__()
        self.width, self.head_dim = hidden, hidden // heads
        self.norm = nn.LayerNorm(hidden)
        self.qkv = nn.Linear(hidden, 3 * hidden)
        self.out = nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, 128), nn.Linear(128, hidden)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.qkv(self.norm(x)).split(self.width, -1)
        query, key, value = (
            one.unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for one in parts
        )
        made = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(made.transpose(1, 2).flatten(2))
        deeper: Tensor = x + self.down(F.gelu(self.up(x)))
        return deeper


class FusedLayers(nn.Module):
    def __init__(self, layers: int = 3, hidden: int = 64) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, hidden)
        self.layers = nn.ModuleList(Fused(hidden) for _ in range(layers))
        self.head = nn.Linear(hidden, 50)

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())

    def example_inputs(self) -> tuple[Tensor, Tensor]:
        return torch.randint(50, (1, 20)), torch.randint(50, (1, 20))


def fused() -> nn.Module:
    return FusedLayers()


class FewExperts(nn.Module):
    """As Hugging Face's: each token through those that are chosen for it."""

    def __init__(self, experts: int = 4, hidden: int = 16, inside: int = 32) -> None:
        super().__init__()
        self.gate_up_proj = nn.Parameter(torch.randn(experts, 2 * inside, hidden) / 8)
        self.down_proj = nn.Parameter(torch.randn(experts, hidden, inside) / 8)

    def forward(self, tokens: Tensor, index: Tensor, weights: Tensor) -> Tensor:
        made = torch.zeros_like(tokens)
        for number, (up, down) in enumerate(
            zip(self.gate_up_proj, self.down_proj, strict=True)
        ):
            rows, places = (index == number).nonzero(as_tuple=True)
            gate, value = F.linear(tokens[rows], up).chunk(2, -1)
            given = F.linear(F.silu(gate) * value, down)
            made = made.index_add(0, rows, given * weights[rows, places, None])
        return made


class Mixture(nn.Module):
    """A product, and experts of which two are chosen for each token."""

    def __init__(self, *, frozen: bool) -> None:
        super().__init__()
        self.given, self.router = nn.Linear(16, 16), nn.Linear(16, 4)
        self.experts = FewExperts().requires_grad_(not frozen)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.given(x).flatten(0, 1)
        weights, index = self.router(tokens).softmax(-1).topk(2)
        made: Tensor = self.experts(tokens, index, weights)
        return made


def mixture() -> tuple[nn.Module, Tensor]:
    return Mixture(frozen=False), torch.randn(1, 6, 16)


def frozen_experts() -> tuple[nn.Module, Tensor]:
    return Mixture(frozen=True), torch.randn(1, 6, 16)


def transformer() -> nn.Module:
    return ByHand(layers=8, hidden=128)
