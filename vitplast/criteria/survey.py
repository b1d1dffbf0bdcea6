"""All criteria of `catalogue` for one model and one sample of labelled target images."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import xarray as xr
from torch import Tensor, nn

from vitplast.bounds import token_statistics
from vitplast.components import COMPONENTS
from vitplast.criteria.accumulate import gradient_sums
from vitplast.criteria.bounded import bound_scores
from vitplast.criteria.branch import branch_plasticity
from vitplast.criteria.catalogue import CRITERIA, OF_LABELS
from vitplast.criteria.constant import constant, parameter_count
from vitplast.criteria.fisher import fisher
from vitplast.criteria.jacobian import jacobian_frobenius, jacobian_spectral
from vitplast.criteria.norms import elasticity, gradient_norm, gradient_rms
from vitplast.criteria.plasticity import plasticity_score
from vitplast.criteria.relative import relative_rate
from vitplast.criteria.residual import residual_energy, residual_norm
from vitplast.criteria.sensitivity import spt, spt_count
from vitplast.criteria.spectrum import spectrum
from vitplast.criteria.surgical import auto_rgn, auto_snr
from vitplast.errors import InputError, ShapeError

Progress = Callable[[int, int], None]

#: Criteria that are made from the sums of gradients, with their functions.
OF_GRADIENTS = {
    "gradient_norm": gradient_norm,
    "gradient_rms": gradient_rms,
    "auto_rgn": auto_rgn,
    "auto_snr": auto_snr,
    "spt": spt,
    "spt_count": spt_count,
    "fisher": fisher,
    "elasticity": elasticity,
    "residual_norm": residual_norm,
    "residual_energy": residual_energy,
}


def criteria_survey(
    model: nn.Module,
    source: Tensor,
    images: Tensor,
    labels: Tensor,
    *,
    head_images: int = 0,
    jacobian_images: int = 4,
    batch_size: int = 16,
    seed: int = 0,
    progress: Progress | None = None,
) -> xr.Dataset:
    """`score` (criterion, layer, component) and `total` (criterion, component) of every criterion; larger = first.

    Parameters
    ----------
    model
        A plain timm vision transformer in evaluation mode, with a head that is not zero (see `vitplast.criteria.head`).
    source
        Normalised images (pairs, C, H, W) of the pretraining side; image k is paired with image k of `images`.
    images, labels
        Normalised target images (N, C, H, W), N >= pairs, and their classes (N,).
    head_images
        Images that the head was fitted on: they count as forward passes of every criterion that takes a loss.
    jacobian_images
        Of the target, at whose tokens the norms of Jacobians are taken.
    batch_size
        Images in the model at a time, for all but the gradients, whose batches are always of `accumulate.BATCH`.
    progress
        Called with (images done, all images), over all passes.

    Returns
    -------
    Dataset of kind "criteria": score, total, forward_passes and backward_passes (criterion), in passes of one image
    through the whole model that the criterion needs on its own; the coordinates words and reference (criterion) say
    what it is and where it comes from; the attribute no_score why a score is missing (JSON: criterion to component to
    reason).

    Raises
    ------
    ShapeError
        If there are fewer target images than pairs.
    InputError
        If `jacobian_images` is below 1 or more than there are images.
    LayoutError, ModeError, HypothesisError
        As the criteria.
    """
    pairs = len(source)
    if pairs > len(images):
        raise ShapeError(f"{pairs} source images need as many target images, got {len(images)}")
    if not 1 <= jacobian_images <= len(images):
        raise InputError(f"jacobian_images must be between 1 and {len(images)}, got {jacobian_images}")
    steps = _Steps(6 * pairs + 2 * jacobian_images + len(images), progress)
    target = images[:pairs]
    found: dict[str, xr.Dataset] = {}
    for convention in ("common", "in_situ"):
        found[f"plasticity_{convention}"] = plasticity_score(
            model, source, target, convention=convention, batch_size=batch_size
        )
        steps.done(pairs)
    found["plasticity_branch"] = branch_plasticity(model, source, target, batch_size=batch_size)
    steps.done(pairs)
    found["relative_rate"] = relative_rate(model, source, target, batch_size=batch_size)
    steps.done(pairs)
    statistics = token_statistics(model, [source, target], batch_size=batch_size)
    steps.done(pairs)
    found |= bound_scores(model, statistics)
    steps.done(pairs)
    found["jacobian_frobenius"] = jacobian_frobenius(model, images[:jacobian_images], seed=seed)
    steps.done(jacobian_images)
    found["jacobian_spectral"] = jacobian_spectral(model, images[:jacobian_images], seed=seed)
    steps.done(jacobian_images)
    found |= {"spectrum": spectrum(model), "spectrum_edge": spectrum(model, "median")}
    found["parameter_count"] = parameter_count(model)
    found |= {f"constant_{c}": constant(model, c) for c in COMPONENTS}
    sums = gradient_sums(model, images, labels, progress=lambda done, _: steps.at(done))
    found |= {name: score(sums) for name, score in OF_GRADIENTS.items()}
    return joined({name: found[name] for name in CRITERIA}, head_images=head_images)


def joined(found: dict[str, xr.Dataset], *, head_images: int = 0) -> xr.Dataset:
    """Scores by name of criterion as one dataset; see `criteria_survey`.

    Raises
    ------
    KeyError
        If a name is not in the catalogue.
    """
    names = list(found)
    extra = {name: float(head_images) if name in OF_LABELS else 0.0 for name in names}
    whole = xr.concat(
        [ds.drop_attrs(deep=False) for ds in found.values()], xr.Variable("criterion", names), join="exact"
    )
    forward = [found[name].attrs["forward_passes"] + extra[name] for name in names]
    backward = [found[name].attrs["backward_passes"] for name in names]
    reasons = {name: json.loads(ds.attrs["no_score"]) for name, ds in found.items()}
    return (
        whole.assign(
            forward_passes=("criterion", np.array(forward), {"units": "1", "long_name": "forward passes of one image"}),
            backward_passes=(
                "criterion",
                np.array(backward),
                {"units": "1", "long_name": "backward passes of one image"},
            ),
        )
        .assign_coords(
            words=("criterion", [CRITERIA[name].words for name in names]),
            reference=("criterion", [CRITERIA[name].source for name in names]),
            data=("criterion", [CRITERIA[name].data for name in names]),
        )
        .assign_attrs(no_score=json.dumps({k: v for k, v in reasons.items() if v}, sort_keys=True))
    )


class _Steps:
    """Progress over passes of different length."""

    def __init__(self, total: int, report: Progress | None) -> None:
        self.total, self.report, self.before = total, report, 0

    def done(self, images: int) -> None:
        self.before += images
        self.at(0)

    def at(self, images: int) -> None:
        if self.report is not None:
            self.report(self.before + images, self.total)
