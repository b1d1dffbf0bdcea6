"""The statements of the theory: what each says, where it is proved, computed and tested; and the labels of results.

`STATEMENTS` is the table behind the front page of the book's part on theory. `MAPS`, `BOUNDS` and `LAWS` are the labels
in results of kind "theory".
"""

from __future__ import annotations

from dataclasses import dataclass

from vitplast.components import COMPONENTS

#: The components and what they make together: `MHA(LN1)` is MHA applied to LN1, `MLP` is FC2 after activation after
#: FC1, and a block is its two residual branches, LayerScale included.
MAPS = (*COMPONENTS, "MHA(LN1)", "FC1(LN2)", "MLP", "MLP(LN2)", "block")

#: Label of a bound to what it says.
BOUNDS = {
    "T3": "linear layer: spectral norm (Theorem 3); FC2 on common input: of the columns that are fed",
    "T6_paper": "layer norm: largest scale over the smallest deviation (paper)",
    "T6": "layer norm: exact constant on tokens above the smallest deviation (Theorem 6)",
    "T6_global": "layer norm: exact constant without a floor, where eps alone bounds it (Theorem 6)",
    "T6_pair": "layer norm: mean over pairs of the two-point bound, bounds the mean rate (Theorem 6)",
    "quoted": "attention: the paper's form, heads cut along rows, largest radius; no bound with a query bias",
    "paper_bias": "attention: the paper's form repaired for query biases (after Theorem 10)",
    "T12_separate": "attention: Theorem 10 with the norms of output and value of each head (Theorem 12)",
    "T12_sum": "attention: Theorem 10 with the norm of their product (Theorem 12)",
    "T12_stacked": "attention: Theorem 10 with heads stacked (Theorem 12)",
    "T10_recentred": "attention: heads stacked, tokens measured from a common centre (Theorem 10)",
    "T14": "layer norm folded into what follows (Theorem 14)",
    "P15": "product over what is composed, LayerScale and layer norms folded (Prop. 15)",
    "P15_centred": "MLP: product with the mean slope of the activation taken apart (Prop. 15)",
    "composed": "product of the bounds of the single components, nothing folded",
}

#: Label of a prediction to what it says.
LAWS = {
    "T4_second_moment": "linear layer: root mean square rate from the second moment of other pairs (Theorem 4)",
    "T4_isotropic": "linear layer: ||W||_F / sqrt(d), differences without preferred direction (Theorem 4)",
    "T4_quadrature": "linear layer: mean rate for Gaussian differences without preferred direction (Theorem 4)",
    "T4_permuted": "FC2 fed E features and zeros: root mean square rate over all orders of the hidden units",
    "P7": "layer norm: inverse input scale (Prop. 7)",
    "pooling": "attention: that of mean pooling",
}


@dataclass(frozen=True)
class Statement:
    """A numbered statement: its place in the book, the functions that compute it, the tests that try to break it.

    `sharp`: how good it is, as far as it is proved. `cases`: those of the search for counterexamples that attack it.
    `bounds`, `laws`: its labels in results of kind "theory".
    """

    id: str
    name: str
    says: str
    page: str
    label: str
    sharp: str
    functions: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()
    cases: tuple[str, ...] = ()
    bounds: tuple[str, ...] = ()
    laws: tuple[str, ...] = ()


STATEMENTS = (
    Statement(
        "D1",
        "Definition 1",
        "plasticity: the mean rate of change over pairs; its variants",
        "plasticity",
        "def-plasticity",
        "definition",
        ("vitplast.measure.measure", "vitplast.estimate.plasticity", "vitplast.local.directional_rate"),
        ("test_measure.py", "test_estimate.py", "test_local.py"),
    ),
    Statement(
        "D2",
        "Definition 2",
        "input conventions: common input and in situ",
        "plasticity",
        "def-conventions",
        "definition",
        ("vitplast.measure.common_input.CommonInput", "vitplast.measure.in_situ.InSitu"),
        ("test_measure.py", "test_reference_model.py"),
    ),
    Statement(
        "P1",
        "Proposition 1",
        "algebra: sums, isometries, scale, composition, residuals, token-wise maps",
        "plasticity",
        "prop-algebra",
        "equalities and inequalities, each proved; the tempting one for compositions refuted",
        ("vitplast.bounds.blocks.residual_bound", "vitplast.bounds.blocks.composition"),
        ("test_block_bounds.py",),
    ),
    Statement(
        "P2",
        "Proposition 2",
        "close pairs measure the gain in one direction; its mean lies near the Frobenius norm",
        "plasticity",
        "prop-close-pairs",
        "two-sided",
        ("vitplast.local.directional_rate", "vitplast.predictions.linear.participation"),
        ("test_local.py", "test_predictions_linear.py"),
    ),
    Statement(
        "D3",
        "Definition 3",
        "estimators for disjoint, crossed and cycled pairs",
        "plasticity",
        "def-estimators",
        "coverage tested by simulation",
        ("vitplast.estimate.plasticity", "vitplast.pairs.pair_indices"),
        ("test_estimate.py",),
    ),
    Statement(
        "T1",
        "Theorem 1",
        "a bound on every pair bounds the mean; average the bound, never the radius",
        "blocks",
        "thm-average",
        "equality case proved",
        ("vitplast.bounds.layernorm.pair_bound",),
        ("test_block_bounds.py", "test_layernorm_bounds.py"),
    ),
    Statement(
        "T2",
        "Theorem 2",
        "on a segment the rate is at most the mean local gain, and that at most the largest Jacobian norm",
        "local",
        "thm-segment",
        "computed from below: an estimate, not a bound",
        (
            "vitplast.local.segment_lipschitz",
            "vitplast.local.local_lipschitz",
            "vitplast.local.math_attention",
        ),
        ("test_local.py",),
    ),
    Statement(
        "T3",
        "Theorem 3",
        "linear layer: spectral norm",
        "linear",
        "thm-linear",
        "exact",
        ("vitplast.bounds.linear.spectral_norm",),
        ("test_bounds.py", "test_search.py"),
        ("L1",),
        bounds=("T3",),
    ),
    Statement(
        "T4",
        "Theorem 4",
        "linear layer: second-moment law and its isotropic value",
        "linear",
        "thm-second-moment",
        "exact for the root mean square; a prediction of the mean",
        (
            "vitplast.predictions.linear.second_moment",
            "vitplast.predictions.linear.second_moment_prediction",
            "vitplast.predictions.linear.isotropic",
            "vitplast.predictions.linear.isotropic_gaussian",
        ),
        ("test_predictions_linear.py",),
        laws=("T4_second_moment", "T4_isotropic", "T4_quadrature"),
    ),
    Statement(
        "R4",
        "Remark",
        "zero-padded FC2 depends on the order of the hidden units",
        "linear",
        "rem-padded",
        "permutation average exact",
        ("vitplast.predictions.linear.permuted_padded", "vitplast.bounds.linear.padded_norm"),
        ("test_predictions_linear.py",),
        laws=("T4_permuted",),
    ),
    Statement(
        "L5",
        "Lemma 5",
        "two-point inequality for normalised vectors",
        "normalisation",
        "lem-two-point",
        "equality where the deviations agree",
        ("vitplast.bounds.layernorm.pair_bound", "vitplast.bounds.layernorm.two_point_factor"),
        ("test_layernorm_bounds.py", "test_search.py"),
        ("N6",),
    ),
    Statement(
        "T6",
        "Theorem 6",
        "LayerNorm and RMSNorm with eps, sign and floor",
        "normalisation",
        "thm-layernorm",
        "exact",
        (
            "vitplast.bounds.layernorm.layernorm_constant",
            "vitplast.bounds.layernorm.layernorm_bound",
            "vitplast.bounds.layernorm.pair_bound",
            "vitplast.bounds.rmsnorm.rmsnorm_constant",
        ),
        ("test_bounds.py", "test_layernorm_bounds.py", "test_search.py"),
        ("N1", "N7"),
        bounds=("T6", "T6_paper", "T6_global", "T6_pair"),
    ),
    Statement(
        "P7",
        "Proposition 7",
        "layer norm plasticity is inverse input scale",
        "normalisation",
        "prop-layernorm-scale",
        "token ratio exact; the mean is a prediction",
        ("vitplast.predictions.layernorm.token_ratio", "vitplast.predictions.layernorm.inverse_scale"),
        ("test_layernorm_bounds.py",),
        laws=("P7",),
    ),
    Statement(
        "P8",
        "Proposition 8",
        "attention in canonical form: the key bias is inert, the query bias is not",
        "attention",
        "prop-canonical",
        "equality",
        ("vitplast.bounds.canonical.canonical",),
        ("test_attention_ball.py",),
    ),
    Statement(
        "L9",
        "Lemma 9",
        "three inequalities for the softmax covariance",
        "attention",
        "lem-softmax",
        "reached at the corners",
        ("vitplast.bounds.attention_ball.score_gain",),
        ("test_attention_ball.py", "test_search.py"),
        ("A0",),
    ),
    Statement(
        "T10",
        "Theorem 10",
        "attention on a ball: the new bound, with biases, masks and recentring",
        "attention",
        "thm-attention",
        "constant optimal in the limit of many tokens and steep scores",
        (
            "vitplast.bounds.attention_ball.mixing_bound",
            "vitplast.bounds.canonical.recentre",
            "vitplast.bounds.attention.attention_paper_bias",
            "vitplast.bounds.attention.attention_quoted",
        ),
        ("test_attention_ball.py", "test_bounds.py", "test_search.py"),
        ("A1", "A2", "A3", "A6", "A11"),
        bounds=("paper_bias", "T10_recentred"),
    ),
    Statement(
        "T11",
        "Theorem 11",
        "attention at given tokens, from its maps",
        "attention_variants",
        "thm-local",
        "bounds the Jacobian at the tokens given",
        ("vitplast.bounds.attention_local.local_attention_bound",),
        ("test_attention_local.py",),
    ),
    Statement(
        "T12",
        "Theorem 12",
        "heads put together: separate, summed, stacked",
        "attention",
        "thm-heads",
        "stacked at most summed at most separate",
        ("vitplast.bounds.attention_ball.combine_heads", "vitplast.bounds.attention_ball.attention_bound"),
        ("test_attention_ball.py", "test_search.py"),
        ("A4",),
        bounds=("T12_separate", "T12_sum", "T12_stacked"),
    ),
    Statement(
        "T13",
        "Theorem 13",
        "queries, keys and values apart: QK-norm, RoPE, cosine attention",
        "attention_variants",
        "thm-three",
        "bound",
        (
            "vitplast.bounds.attention_three.attention_rope_bound",
            "vitplast.bounds.attention_three.attention_qk_norm_bound",
            "vitplast.bounds.attention_three.attention_cosine_bound",
        ),
        ("test_attention_three.py", "test_search.py"),
        ("A9",),
    ),
    Statement(
        "T14",
        "Theorem 14",
        "layer norm folded into FC1 and MHA",
        "attention_variants",
        "thm-folded",
        "exact for FC1, a bound for MHA",
        ("vitplast.bounds.folded.layernorm_linear", "vitplast.bounds.folded.layernorm_attention"),
        ("test_layernorm_bounds.py", "test_attention_three.py", "test_search.py"),
        ("A8",),
        bounds=("T14",),
    ),
    Statement(
        "R14",
        "Remark",
        "attention with flat scores is mean pooling",
        "attention_variants",
        "rem-pooling",
        "error of the prediction bounded by the spread of the scores",
        ("vitplast.predictions.attention.pooling", "vitplast.predictions.attention.entropy"),
        ("test_predictions_attention.py",),
        laws=("pooling",),
    ),
    Statement(
        "P15",
        "Proposition 15",
        "activations, MLP, residual branches, LayerScale, gated MLP",
        "blocks",
        "prop-activations",
        "activation constants exact; products are bounds; gated MLP on a ball only",
        (
            "vitplast.bounds.activations.activation_constant",
            "vitplast.bounds.blocks.mlp_bound",
            "vitplast.bounds.blocks.gated_mlp_bound",
            "vitplast.bounds.blocks.residual_bound",
        ),
        ("test_block_bounds.py", "test_search.py"),
        ("M2", "M3", "M4"),
        bounds=("P15", "P15_centred"),
    ),
    Statement(
        "P16",
        "Proposition 16",
        "patch embedding",
        "blocks",
        "prop-patches",
        "exact without overlap",
        ("vitplast.bounds.patch_embedding.patch_embedding_bound",),
        ("test_block_bounds.py", "test_search.py"),
        ("E1",),
    ),
    Statement(
        "P17",
        "Proposition 17",
        "what can be proved of gradients: input norm times sensitivity of what follows",
        "gradients",
        "prop-gradients",
        "equality for one token",
        ("vitplast.gradients.gradient_norms", "vitplast.gradients.gradient_inequalities"),
        ("test_gradients.py", "test_search.py"),
        ("G1",),
    ),
    Statement(
        "P18",
        "Proposition 18",
        "rescalings move plasticity and gradient in opposite directions, the function stays",
        "gradients",
        "prop-rescale",
        "equality",
        ("vitplast.rescale.rescale", "vitplast.rescale.orbit"),
        ("test_rescale.py",),
    ),
)
