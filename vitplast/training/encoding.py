"""Images encoded once where the encoder is frozen and nothing is augmented, kept for the next run on the same ones."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence, Sized

import torch

from vitplast.training.batches import Images
from vitplast.training.evaluate import BATCH
from vitplast.training.origin import Origin
from vitplast.training.precision import autocast
from vitplast.training.stages import Stages


def fits(stages: Stages, inputs: Sequence[Sized], limit: int) -> bool:
    """Whether the model can be cut before its final norm, and all encoded images fit into `limit` bytes."""
    if not stages.splits:
        return False
    model = stages.model
    tokens = 1 if stages.pooled else model.patch_embed.num_patches + model.num_prefix_tokens
    return sum(map(len, inputs)) * tokens * model.embed_dim * 4 <= limit


def encoded(origin: Origin, stages: Stages, inputs: Images, precision: str, limit: int) -> Images:
    """What the frozen encoder makes of all images, in order and in chunks of one size: the same bits in every run.

    Kept in `origin` under a hash of the images, for the next learning rate on the same ones; up to `limit` bytes.
    """
    content = hashlib.sha256(inputs.images.cpu().contiguous().numpy()).hexdigest()
    key = (content, inputs.images.dtype, inputs.prepare, precision)
    if key not in origin.features:
        with torch.no_grad(), autocast(precision, inputs.device):
            chunks = [stages.encode(inputs.at(i)).to(inputs.dtype) for i in torch.arange(len(inputs)).split(BATCH)]
        if sum(kept.nbytes for kept in origin.features.values()) > limit:
            origin.features.clear()
        origin.features[key] = torch.cat(chunks)
    return Images(origin.features[key], None, inputs.device, inputs.dtype)
