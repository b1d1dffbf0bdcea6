"""All criteria by name: what each measures, and where it comes from. Loads nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass

from vitplast.components import COMPONENTS


@dataclass(frozen=True)
class Criterion:
    """`words`: what is measured; `source`: where the criterion is from; `data`: what it looks at.

    `data` is one of "nothing", "weights", "pairs" (images of both sides), "images" (of the target) and "labels".
    """

    words: str
    source: str
    data: str


_PLASTICITY = "Odonnat, Chapel, Tavenard, Redko, ICML 2026, arXiv 2602.06883"
_OURS = "this project"
_SURGICAL = "Lee, Chen, Tajwar, Kumar, Yao, Liang, Finn, Surgical Fine-Tuning, ICLR 2023, arXiv 2210.11466"
_SPT = "He, Cai, Zhang, Tao, Zhuang, Sensitivity-Aware Visual PEFT (SPT), ICCV 2023, arXiv 2303.08566"
_FISHER = "diagonal empirical Fisher, as in Sung, Nair, Raffel, FISH mask, NeurIPS 2021, arXiv 2111.09839"
_SPECTRUM = "Hartford, Atkins, Fernandes Neto, Golchinfar, Spectrum, 2024, arXiv 2406.06623"
_EDGE = f"{_SPECTRUM}; noise level from the median, Gavish and Donoho, IEEE Trans. Inf. Theory 60(8), 2014"
_CARD = "after Xu, Liang, Dai, Hu, Chan, Ma, Layer Card, 2026, arXiv 2602.04019; definition by this project"
_ELASTICITY = "this project: invariant of Proposition 18"

CRITERIA: dict[str, Criterion] = {
    "plasticity_common": Criterion("mean rate of change, every component fed the embeddings", _PLASTICITY, "pairs"),
    "plasticity_in_situ": Criterion(
        "mean rate of change, every component on its own input", f"{_PLASTICITY}; own inputs: {_OURS}", "pairs"
    ),
    "plasticity_branch": Criterion(
        "mean rate of change of the residual branch that the component is part of", f"{_OURS}: after Prop. 18", "pairs"
    ),
    "relative_rate": Criterion("mean rate of change times norm of input over norm of output", _OURS, "pairs"),
    "jacobian_frobenius": Criterion(
        "mean Frobenius norm of the Jacobian over the root of its inputs", f"{_OURS}: after Prop. 2", "images"
    ),
    "jacobian_spectral": Criterion("mean spectral norm of the Jacobian", f"{_OURS}: after Theorem 2", "images"),
    "bound_valid_common": Criterion(
        "bound on the rate of change (valid form), at the embeddings", f"{_PLASTICITY}; corrected: {_OURS}", "pairs"
    ),
    "bound_new_common": Criterion("bound on the rate of change (new form), at the embeddings", _OURS, "pairs"),
    "bound_valid_in_situ": Criterion(
        "bound on the rate of change (valid form), at own inputs", f"{_PLASTICITY}; corrected: {_OURS}", "pairs"
    ),
    "bound_new_in_situ": Criterion("bound on the rate of change (new form), at own inputs", _OURS, "pairs"),
    "gradient_norm": Criterion("norm of the mean gradient", "common practice", "labels"),
    "gradient_rms": Criterion("root mean square entry of the mean gradient", "common practice", "labels"),
    "auto_rgn": Criterion("norm of the mean gradient over norm of the parameters", _SURGICAL, "labels"),
    "auto_snr": Criterion("mean over parameters of squared mean over variance of the gradient", _SURGICAL, "labels"),
    "spt": Criterion("sum over parameters and batches of the squared batch gradient", _SPT, "labels"),
    "spt_count": Criterion("share of the most sensitive 0.4 % of all parameters", _SPT, "labels"),
    "fisher": Criterion("mean over images of the squared gradient, summed over parameters", _FISHER, "labels"),
    "elasticity": Criterion("mean over images of norm of parameters times norm of gradient", _ELASTICITY, "labels"),
    "residual_norm": Criterion("norm of the mean gradient whitened by the input covariance", _CARD, "labels"),
    "residual_energy": Criterion("norm of the mean gradient over the root of the input energy", _CARD, "labels"),
    "spectrum": Criterion("signal over noise of singular values, noise from their quartiles", _SPECTRUM, "weights"),
    "spectrum_edge": Criterion("the same with the edge of Marchenko and Pastur fitted to the median", _EDGE, "weights"),
    "parameter_count": Criterion("number of parameters", "common practice", "weights"),
    **{
        f"constant_{c}": Criterion(f"always {c}", "advice without data; MHA is that of arXiv 2602.06883", "nothing")
        for c in COMPONENTS
    },
}

#: Criteria that take the gradient of a loss.
OF_LABELS = tuple(name for name, c in CRITERIA.items() if c.data == "labels")
