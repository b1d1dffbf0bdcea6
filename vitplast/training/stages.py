"""A vision transformer as encoder and classifier: what is frozen is computed once, what is not read is left out."""

from __future__ import annotations

from torch import Tensor, nn


class Stages:
    """logits = classify(encode(images)), the same numbers as `model(images)` up to rounding.

    `encode` is all that comes before the final norm. Where the class token alone is classified, the last block's MLP is
    applied to that token only (norms and linear layers act on each token by itself), and (B, E) is returned instead of
    (B, n, E). A model whose forward pass is not timm's plain one is called as a whole: `splits` is False.
    """

    def __init__(self, model: nn.Module) -> None:
        from timm.models.vision_transformer import Block, VisionTransformer

        kept = ("forward", "forward_features", "forward_head", "pool")
        self.model = model
        self.splits = (
            isinstance(model, VisionTransformer)
            and all(getattr(type(model), name) is getattr(VisionTransformer, name) for name in kept)
            and type(model.blocks) is nn.Sequential
            and not model.grad_checkpointing
        )
        self.class_token = self.splits and model.global_pool == "token" and model.attn_pool is None
        self.short_last = self.class_token and type(model.blocks[-1]) is Block
        #: Encoded images are (B, E), one vector each; else (B, n, E).
        self.pooled = self.class_token or (
            self.splits and model.attn_pool is None and isinstance(model.norm, nn.Identity)
        )

    def __call__(self, images: Tensor) -> Tensor:
        """Logits (B, classes)."""
        return self.classify(self.encode(images)) if self.splits else self.model(images)

    def encode(self, images: Tensor) -> Tensor:
        """Class token (B, E), pooled tokens (B, E) or all tokens (B, n, E) before the final norm."""
        model = self.model
        tokens = model.norm_pre(model.patch_drop(model._pos_embed(model.patch_embed(images))))
        for block in model.blocks[:-1]:
            tokens = block(tokens)
        last = model.blocks[-1]
        if self.short_last:
            tokens = tokens + last.drop_path1(last.ls1(last.attn(last.norm1(tokens))))
            token = tokens[:, :1]
            return (token + last.drop_path2(last.ls2(last.mlp(last.norm2(token)))))[:, 0]
        tokens = last(tokens)
        if self.class_token:
            return tokens[:, 0]
        return model.pool(tokens) if self.pooled else tokens

    def classify(self, encoded: Tensor) -> Tensor:
        """Final norm, pooling where still needed, and head."""
        model = self.model
        if self.pooled:
            return model.head(model.head_drop(model.fc_norm(model.norm(encoded))))
        return model.forward_head(model.norm(encoded))
