"""A loaded model whose parameters are rescaled before an experiment: same function, other plasticity (Prop. 18)."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vitplast.models import LoadedModel
from vitplast.rescale.change import rescale, verify_same_function
from vitplast.rescalings import canonical, parse_rescaling

#: Noise images on which the function is compared.
IMAGES = 2
#: Largest relative difference of the outputs that counts as rounding: of a power of two, of any other factor.
EXACT, ROUNDED = 1e-10, 1e-5


@dataclass(frozen=True, eq=False)
class RescaledModel(LoadedModel):
    """A `LoadedModel` that says by what it was rescaled, and how far its output then is from the original's."""

    rescale: str = ""
    rescale_difference: float = 0.0

    @property
    def provenance(self) -> dict[str, str | int | float]:
        """The record of the weights that were loaded, with `rescale` and `rescale_difference`."""
        own = {"rescale": self.rescale, "rescale_difference": self.rescale_difference}
        return {**super().provenance, **own}


def rescaled(loaded: LoadedModel, text: str) -> LoadedModel:
    """`f_c = f` with `c gamma, c beta, W / c` in all blocks; `loaded` itself where `text` changes nothing (Prop. 18).

    The outputs of the final norm, all tokens of two images of noise, are compared in float64: they may differ by 1e-10
    relatively for a power of two and by 1e-5 for any other factor, whose products float32 rounds. So a head of zeros
    hides nothing.

    Parameters
    ----------
    loaded
        A model in evaluation mode. It stays as it is; the result holds a copy.
    text
        As `rescalings.parse_rescaling`: `LN2/FC1:4`.

    Raises
    ------
    UnknownNameError, InputError
        If `text` is no rescaling.
    LayoutError
        If the model's function would not stay.
    HypothesisError
        If it did not stay, or a parameter overflows or vanishes.
    """
    asked = parse_rescaling(text)
    if asked is None:
        return loaded
    model = rescale(loaded, *asked)
    mantissa = torch.frexp(torch.tensor(asked[1], dtype=torch.float64)).mantissa
    difference = verify_same_function(
        _Features(loaded.model), _Features(model), _noise(loaded), tolerance=EXACT if mantissa == 0.5 else ROUNDED
    )
    own = {f.name: getattr(loaded, f.name) for f in dataclasses.fields(loaded)}
    return RescaledModel(**{**own, "model": model}, rescale=canonical(text), rescale_difference=difference)


class _Features(nn.Module):
    """Tokens after the final norm."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.training = False

    def forward(self, images: Tensor) -> Tensor:
        return self.model.forward_features(images)


def _noise(loaded: LoadedModel) -> Tensor:
    shape = (IMAGES, len(loaded.mean), loaded.img_size, loaded.img_size)
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(loaded.device)
