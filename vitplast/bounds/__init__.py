"""Upper bounds on the rate of change of each component: `||f(X) - f(Y)|| <= bound * ||X - Y||`, Frobenius norms.

One family of statements a file, as functions of tensors and numbers: `linear`, `layernorm`, `rmsnorm`, attention
(`canonical`, `attention`, `attention_ball`, `attention_local`, `attention_three`), `folded`, `blocks`, `activations`,
`patch_embedding`. `tokens` measures what the bounds assume about their inputs; `reading` takes the tensors out of
timm's modules, or says why no statement covers one; `model` puts the bounds of the components into one table.
"""

from vitplast.bounds.activations import ACTIVATION_CONSTANTS, activation_constant
from vitplast.bounds.attention import (
    ColumnHeads,
    HeadNorms,
    Heads,
    attention_paper_bias,
    attention_quoted,
    column_heads,
    column_norms,
    heads,
    product_norm,
    row_norms,
)
from vitplast.bounds.attention_ball import attention_bound, combine_heads, mixing_bound, score_gain, sharp_example
from vitplast.bounds.attention_local import attention_maps, local_attention_bound
from vitplast.bounds.attention_three import (
    QKNorm,
    attention_cosine_bound,
    attention_qk_norm_bound,
    attention_rope_bound,
)
from vitplast.bounds.blocks import (
    composition,
    fold_linear,
    gated_mlp_bound,
    layernorm_mlp_bound,
    layerscale_bound,
    mlp_bound,
    residual_bound,
)
from vitplast.bounds.canonical import Canonical, canonical, fold, recentre
from vitplast.bounds.folded import layernorm_attention, layernorm_linear
from vitplast.bounds.layernorm import (
    centred_norm,
    layernorm_bound,
    layernorm_coded,
    layernorm_constant,
    pair_bound,
    token_deviations,
    two_point_factor,
)
from vitplast.bounds.linear import padded_norm, spectral_norm
from vitplast.bounds.model import VARIANTS, bounds, head_norms
from vitplast.bounds.patch_embedding import patch_embedding_bound, patch_stem_bound
from vitplast.bounds.reading import (
    read_attention,
    read_layerscale,
    read_linear,
    read_mlp,
    read_norm,
    read_patch_embedding,
    statement,
)
from vitplast.bounds.rmsnorm import batchnorm_constant, rmsnorm_constant, rmsnorm_pair_bound
from vitplast.bounds.three_argument import query_key_floors, three_argument_bound
from vitplast.bounds.tokens import token_statistics

__all__ = [
    "ACTIVATION_CONSTANTS",
    "VARIANTS",
    "Canonical",
    "ColumnHeads",
    "HeadNorms",
    "Heads",
    "QKNorm",
    "activation_constant",
    "attention_bound",
    "attention_cosine_bound",
    "attention_maps",
    "attention_paper_bias",
    "attention_qk_norm_bound",
    "attention_quoted",
    "attention_rope_bound",
    "batchnorm_constant",
    "bounds",
    "canonical",
    "centred_norm",
    "column_heads",
    "column_norms",
    "combine_heads",
    "composition",
    "fold",
    "fold_linear",
    "gated_mlp_bound",
    "head_norms",
    "heads",
    "layernorm_attention",
    "layernorm_bound",
    "layernorm_coded",
    "layernorm_constant",
    "layernorm_linear",
    "layernorm_mlp_bound",
    "layerscale_bound",
    "local_attention_bound",
    "mixing_bound",
    "mlp_bound",
    "padded_norm",
    "pair_bound",
    "patch_embedding_bound",
    "patch_stem_bound",
    "product_norm",
    "query_key_floors",
    "read_attention",
    "read_layerscale",
    "read_linear",
    "read_mlp",
    "read_norm",
    "read_patch_embedding",
    "recentre",
    "residual_bound",
    "rmsnorm_constant",
    "rmsnorm_pair_bound",
    "row_norms",
    "score_gain",
    "sharp_example",
    "spectral_norm",
    "statement",
    "three_argument_bound",
    "token_deviations",
    "token_statistics",
    "two_point_factor",
]
