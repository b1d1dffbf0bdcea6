"""Pretraining of the own model: the loss falls, a seed decides the weights, augmentation moves and mirrors images."""

from __future__ import annotations

import pytest
import torch
import xarray as xr

from vitplast.errors import InputError
from vitplast.models import own
from vitplast.pretraining import SHIFT, Moved, _decayed, pretrain


def planted(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Images whose class is their brightness."""
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 2, (count,), generator=g)
    noise = torch.randint(0, 60, (count, 3, own.SIZE, own.SIZE), generator=g)
    return (noise + 150 * labels[:, None, None, None]).to(torch.uint8), labels


def prepare(images: torch.Tensor) -> torch.Tensor:
    return images.float() / 127.5 - 1


def trained(seed: int = 0, epochs: int = 2) -> tuple[torch.nn.Module, xr.Dataset]:
    torch.manual_seed(0)
    model = own.build(num_classes=2)
    splits = [planted(n, s) for n, s in ((64, 0), (20, 1), (20, 2))]
    return model, pretrain(model, *splits, prepare=prepare, epochs=epochs, batch_size=16, seed=seed)


def test_it_learns_and_keeps_half_precision():
    model, found = trained(epochs=3)
    assert found.train_loss.values[-1] < found.train_loss.values[0]
    assert float(found.test_accuracy) > 0.9
    assert found.sizes["epoch"] == 3
    assert int(found.n_train) == 64
    assert all(torch.equal(p, p.half().float()) for p in model.parameters())


def test_the_same_seed_gives_the_same_weights_and_another_one_does_not():
    first, second, other = (trained(seed)[0].state_dict() for seed in (0, 0, 1))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not all(torch.equal(first[name], other[name]) for name in first)


def test_no_passes_are_refused():
    with pytest.raises(InputError, match="epochs must be at least 1"):
        trained(epochs=0)


def test_moved_images_are_parts_of_the_padded_ones():
    images = torch.randint(1, 255, (40, 3, 8, 8), dtype=torch.uint8)
    wide = torch.nn.functional.pad(images, (SHIFT,) * 4)
    moved = Moved(0)(images)
    mirrored = 0
    for one, padded in zip(moved, wide, strict=True):
        places = [padded[:, t : t + 8, s : s + 8] for t in range(2 * SHIFT + 1) for s in range(2 * SHIFT + 1)]
        plain = any(torch.equal(one, place) for place in places)
        flipped = any(torch.equal(one, place.flip(2)) for place in places)
        assert plain or flipped
        mirrored += flipped and not plain
    assert 8 <= mirrored <= 32
    assert torch.equal(Moved(0)(images), moved)


def test_norms_biases_and_embeddings_do_not_decay():
    model = own.build(num_classes=2)
    decayed, kept = (group["params"] for group in _decayed(model, 0.05))
    named = {id(p): name for name, p in model.named_parameters()}
    assert {named[id(p)] for p in kept} >= {"cls_token", "pos_embed", "norm.weight", "blocks.0.attn.qkv.bias"}
    assert all(named[id(p)].endswith("weight") and p.ndim > 1 for p in decayed)
    assert len(decayed) + len(kept) == len(named)
