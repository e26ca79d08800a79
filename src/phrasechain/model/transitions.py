"""Transition scores τ(k→k') of the chain: phrase t-1 at region k and phrase t at region k'.

The same modules, with weights of their own, score phrases t-2 and t in a second-order chain: by ``edges``.

Axes: I images, B captions, T phrases in a chain, K regions, D features, E edges, h hidden units.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from phrasechain.core.boxes import area_xyxy, centre_xyxy
from phrasechain.model.batch import Batch
from phrasechain.model.edges import Edges
from phrasechain.model.fused import gated_geometry, relu_pairs
from phrasechain.model.scores import spread, widen


class PaperTransition(nn.Module):
    """τ = w·relu(A r_k + B r_k' + C ctx) + b, the paper's two-layer network on [r_k ; r_k' ; ctx].

    Without context it is one (K, K) per image.
    """

    def __init__(self, region_dimension: int, text_dimension: int, context_dimension: int, hidden: int = 16) -> None:
        super().__init__()
        self.a = nn.Linear(region_dimension, hidden)
        self.b = nn.Linear(region_dimension, hidden, bias=False)
        self.c = nn.Linear(context_dimension, hidden, bias=False) if context_dimension else None
        self.out = nn.Linear(hidden, 1)

    def xavier_as_one_layer_(self) -> None:
        """Xavier's uniform initialisation of A, B and C as the one matrix on [r_k ; r_k' ; ctx] that they are."""
        weights = [layer.weight for layer in (self.a, self.b, self.c) if layer is not None]  # (h, ·) each
        inputs, hidden = sum(weight.shape[1] for weight in weights), weights[0].shape[0]
        bound = math.sqrt(6 / (inputs + hidden))
        for weight in weights:
            nn.init.uniform_(weight, -bound, bound)

    def forward(
        self, regions: Tensor, phrases: Tensor, context: Tensor | None, batch: Batch, edges: Edges | None = None
    ) -> Tensor:
        """Regions (N, D) and contexts (B, T-1, c) give (B, T-1, K, K), or (B, 1, K, K) without context.

        ``edges`` are the pairs of phrases that are scored, by default the neighbours.
        """
        before, after = (spread(layer(regions), batch.region_mask) for layer in (self.a, self.b))  # (I, K, h)
        if self.c is None or context is None:
            return self._scores(before, after)[batch.caption_image, None]
        edges = Edges.of(batch) if edges is None else edges
        hint = self.c(context)[edges.caption, edges.step]  # (E, h)
        scores = self._scores(before[edges.image] + hint[:, None], after[edges.image])  # (E, K, K)
        return edges.to_chains(scores, batch)

    def _scores(self, before: Tensor, after: Tensor) -> Tensor:
        return relu_pairs(widen(before), widen(after), self.out.weight[0]) + self.out.bias


class GeometricTransition(nn.Module):
    """The paper's transition plus geometric and bilinear terms of the two regions, gated by the text:

    τ = paper(k, k') + s·(Σ_m g_m relu(W φ(k, k') + b)_m + Σ_j e_j (A' r_k)_j (B' r_k')_j)

    φ are the pair's geometric features. The gates g and e are a two-layer network on [p_{t-1} ; p_t ; ctx], so that
    "his shirt" after "a man" can ask for a region inside the other, and "a woman" for one beside it. s starts at 0, at
    the paper's transition.
    """

    def __init__(self, region_dimension: int, text_dimension: int, context_dimension: int, hidden: int = 16) -> None:
        super().__init__()
        self.paper = PaperTransition(region_dimension, text_dimension, context_dimension, hidden)
        self.shapes = nn.Linear(PAIR_FEATURES, 2 * hidden)
        self.before = nn.Linear(region_dimension, hidden)
        self.after = nn.Linear(region_dimension, hidden)
        text = 2 * text_dimension + context_dimension
        self.gates = nn.Sequential(nn.Linear(text, 4 * hidden), nn.ReLU(), nn.Linear(4 * hidden, 3 * hidden))
        self.strength = nn.Parameter(torch.zeros(1))

    def forward(
        self,
        regions: Tensor,
        phrases: Tensor,
        context: Tensor | None,
        batch: Batch,
        edges: Edges | None = None,
        geometry: Tensor | None = None,
    ) -> Tensor:
        """Regions (N, D), phrases (P, d) and contexts (B, T-1, c) give (B, T-1, K, K).

        ``edges`` are the pairs of phrases that are scored, by default the neighbours. ``geometry``
        is ``pair_features_xyxy`` of the batch, (I, K, K, 10), where it is known already.
        """
        edges = Edges.of(batch) if edges is None else edges
        text = [phrases[edges.left], phrases[edges.right]]
        text += [] if context is None else [context[edges.caption, edges.step]]
        gates = widen(self.gates(torch.cat(text, -1))) * self.strength  # (E, 3h)
        of_shapes, of_contents = gates.tensor_split([self.shapes.out_features], -1)  # (E, 2h), (E, h)
        geometry = pair_features_xyxy(batch.boxes, batch.sizes) if geometry is None else geometry
        features = geometry.to(self.shapes.weight)  # (I, K, K, F)
        scores = gated_geometry(of_shapes, self.shapes.weight, self.shapes.bias, features, edges.image)  # (E, K, K)
        before = spread(widen(self.before(regions)), batch.region_mask)[edges.image] * of_contents[:, None]  # (E, K, h)
        after = spread(widen(self.after(regions)), batch.region_mask)[edges.image]
        with torch.autocast(scores.device.type, enabled=False):
            scores = torch.baddbmm(scores, before, after.transpose(1, 2))
        paper: Tensor = self.paper(regions, phrases, context, batch, edges)
        return paper + edges.to_chains(scores, batch)


PAIR_FEATURES = 10


def pair_features_xyxy(boxes: Tensor, sizes: Tensor) -> Tensor:
    """How box k' lies to box k: boxes (I, K, 4) in images of ``sizes`` (I, 2) to (I, K, K, 10).

    The way from centre to centre, by the first box's sides (in asinh, since it may be a speck) and by the image's;
    the log ratios of widths and heights; IoU, the shares of the first and of the second box that the other covers, and
    whether they are the same.
    """
    first, second = boxes[:, :, None], boxes[:, None]  # (I, K, 1, 4), (I, 1, K, 4)
    way = centre_xyxy(second) - centre_xyxy(first)  # (I, K, K, 2)
    sides, other_sides = ((each[..., 2:] - each[..., :2]).clamp(min=1.0) for each in (first, second))
    top_left = torch.maximum(first[..., :2], second[..., :2])
    overlap = area_xyxy(torch.cat([top_left, torch.minimum(first[..., 2:], second[..., 2:])], -1))  # (I, K, K)
    area, other_area = sides.prod(-1), other_sides.prod(-1)
    shares = torch.stack([overlap / (area + other_area - overlap), overlap / area, overlap / other_area], -1)
    same = torch.eye(boxes.shape[1], device=boxes.device).expand(len(boxes), -1, -1)[..., None]
    lengths = torch.log(other_sides / sides)
    return torch.cat([torch.asinh(way / sides), way / sizes[:, None, None], lengths, shares, same], -1)


#: From the dimensions of regions, phrases and contexts, and the hidden units, to a module.
TRANSITIONS: dict[str, Callable[[int, int, int, int], nn.Module]] = {
    "paper": PaperTransition,
    "geometric": GeometricTransition,
}
