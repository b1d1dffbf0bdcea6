"""Parameters of the notebooks that measure on pairs of images: plasticity, bounds, theory and gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from vitplast import images, models, texts
from vitplast.components import GATED, MHA_INPUTS
from vitplast.errors import InputError
from vitplast.fields import unique
from vitplast.pairs import DESIGNS, ORDERS, pairs_of
from vitplast.parameters.base import CONVENTIONS, PRECISIONS, RESCALE, ModelParameters, option
from vitplast.rescalings import canonical

ORDER = "random, or file: both sides in file order, cycled from the start again when exhausted"
DROP_LAST = "each side is cut to a multiple of this many images, as a loader drops its last batch; 0: not cut"
FC1 = "of a gated MLP: both (gate and up projection, stacked) or up (up projection alone, the authors')"
MHA_INPUT = "common input of MHA: embedding, or normed (LN1 of the embedding, the authors' for GPT-2)"
TOKENS = "for models that read text: largest number of tokens of a text"
PADDING = "of texts: excluded, or counted (filled up with the end token to that number, the authors')"


@dataclass(frozen=True)
class PairParameters(ModelParameters):
    """What a measurement on pairs takes, of images or of texts."""

    swept: ClassVar[dict[str, str]] = {"targets": "target"}

    source: str = option("photos", "image set of the pretraining side, x")
    targets: list = option(["mnist5k"], "image sets of the downstream side, y; one result each")
    pairs: int = option(64, "pairs (disjoint, cycled) or images per side (crossed)", low=2)
    conventions: list = option(["common", "in_situ"], "input conventions: common, in_situ", each=CONVENTIONS)
    design: str = option("disjoint", "disjoint, crossed or cycled (Definition 3)", choices=DESIGNS)
    precision: str = option("float32", "of the forward pass: float32, bfloat16 or float16", choices=PRECISIONS)
    batch_size: int = option(16, "images in the model at a time, both sides together", low=1, key=False)
    seed: int = option(0, "seed of the choice of images", low=0)
    rescale: str = option("", RESCALE, added=True)

    def check(self) -> None:
        super().check()
        self._set("rescale", canonical(self.rescale))
        self._set("conventions", [c for c in CONVENTIONS if c in self.conventions])
        _check_sides(self)


@dataclass(frozen=True)
class PlasticityParameters(PairParameters):
    """Parameters of `notebooks/plasticity.ipynb`."""

    kind: ClassVar[str] = "plasticity"

    order: str = option("random", ORDER, choices=ORDERS, added=True)
    drop_last: int = option(0, DROP_LAST, low=0, added=True)
    fc1: str = option("both", FC1, choices=GATED, added=True)
    mha_input: str = option("embedding", MHA_INPUT, choices=MHA_INPUTS, added=True)
    tokens: int = option(128, TOKENS, low=2, high=1024, added=True)
    padding: str = option("excluded", PADDING, choices=texts.PADDING, added=True)


@dataclass(frozen=True)
class BoundsParameters(ModelParameters):
    """Parameters of `notebooks/bounds.ipynb`."""

    kind: ClassVar[str] = "bounds"
    swept: ClassVar[dict[str, str]] = {"targets": "target"}

    source: str = option("photos", "image set of the pretraining side, x")
    targets: list = option(["mnist5k"], "image sets of the downstream side, y; one result each")
    pairs: int = option(64, "images per side whose token norms and deviations enter the bounds", low=2)
    design: str = option("disjoint", "disjoint, crossed or cycled: as in the measurement to compare", choices=DESIGNS)
    batch_size: int = option(16, "images at a time", low=1, key=False)
    seed: int = option(0, "seed of the choice of images", low=0)
    rescale: str = option("", RESCALE, added=True)
    order: str = option("random", ORDER, choices=ORDERS, added=True)
    drop_last: int = option(0, DROP_LAST, low=0, added=True)
    tokens: int = option(128, TOKENS, low=2, high=1024, added=True)

    def check(self) -> None:
        super().check()
        self._set("rescale", canonical(self.rescale))
        _check_sides(self)


@dataclass(frozen=True)
class TheoryParameters(PairParameters):
    """Parameters of `notebooks/theory.ipynb`."""

    kind: ClassVar[str] = "theory"

    local_pairs: int = option(2, "pairs between which Jacobian norms are taken; 0: none", low=0)
    local_points: int = option(3, "points on the segment of each of these pairs", low=2)


@dataclass(frozen=True)
class GradientsParameters(ModelParameters):
    """Parameters of `notebooks/gradients.ipynb`."""

    kind: ClassVar[str] = "gradients"
    swept: ClassVar[dict[str, str]] = {"targets": "target"}

    source: str = option("photos", "image set of the pretraining side, x")
    targets: list = option(["mnist5k"], "image sets of the downstream side, y, with labels; one result each")
    pairs: int = option(16, "pairs on which plasticity is measured, each image used once", low=2)
    images: int = option(4, "target images whose gradients are taken, one at a time", low=1)
    factors: list = option(
        [0.25, 1.0, 4.0], "rescalings c of Proposition 18; 1 is the model as it is", low=0.0, of=float
    )
    seed: int = option(0, "seed of the choice of images", low=0)

    def check(self) -> None:
        super().check()
        _check_sides(self)
        if not all(1e-6 <= c <= 1e6 for c in self.factors) or 1.0 not in self.factors:
            raise InputError(f"factors must lie between 1e-6 and 1e6 and hold 1, got {self.factors!r}")
        if self.images > self.pairs:
            raise InputError(f"images must be at most pairs, {self.pairs}, got {self.images}")
        self._set("factors", sorted(self.factors))


def _check_sides(p: Any) -> None:
    """Refuses sides without their split or, as far as their sizes are stated, with too few images for the pairs."""
    if models.family(p.model) == "gpt2":
        _check_texts(p)
        return
    for name in (p.source, *p.targets):
        if texts.is_text(name):
            raise InputError(f"{name!r} is a set of texts, but model {p.model!r} takes images; text models: gpt2, ...")
    p._set("source", images.check_splits(p.source, "source"))
    p._set("targets", unique("targets", [images.check_splits(t, "test") for t in p.targets]))
    for name, value in (("tokens", 128), ("padding", "excluded")):  # one spelling for what images have not
        if hasattr(p, name):
            p._set(name, value)
    source = images.sizes(p.source)
    for name in p.targets:
        target = images.sizes(name)
        if source and target:
            try:
                pairs_of(p.to_dict(), source["source"], target["test"])
            except InputError as error:
                raise InputError(f"{p.source} and {name}: {error}") from None


def _check_texts(p: Any) -> None:
    """Refuses sides that are not texts, and a design that pairs of different length can't have."""
    for name in (p.source, *p.targets):
        if not texts.is_text(name):
            raise InputError(
                f"model {p.model!r} reads text, but {name!r} is no text set; there are {', '.join(texts.names())}"
            )
    p._set("targets", unique("targets", list(p.targets)))
    if p.design == "crossed":
        raise InputError("design crossed is for images: texts differ in their tokens; take disjoint or cycled")
