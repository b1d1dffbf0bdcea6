"""Upper bounds on the rate of change of each component: `||f(X) - f(Y)|| <= bound * ||X - Y||`, Frobenius norms.

`linear`, `layernorm` and `attention` hold functions of tensors and numbers, one family of statements a file;
`tokens` measures what the bounds assume about their inputs; `model` reads the weights out of a timm model.
"""

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
from vitplast.bounds.layernorm import centred_norm, layernorm_bound, layernorm_coded, layernorm_constant
from vitplast.bounds.linear import padded_norm, spectral_norm
from vitplast.bounds.model import VARIANTS, bounds, head_norms
from vitplast.bounds.tokens import token_statistics

__all__ = [
    "VARIANTS",
    "ColumnHeads",
    "HeadNorms",
    "Heads",
    "attention_paper_bias",
    "attention_quoted",
    "bounds",
    "centred_norm",
    "column_heads",
    "column_norms",
    "head_norms",
    "heads",
    "layernorm_bound",
    "layernorm_coded",
    "layernorm_constant",
    "padded_norm",
    "product_norm",
    "row_norms",
    "spectral_norm",
    "token_statistics",
]
