"""Names of the rescalings that leave a transformer's function unchanged (Prop. 18): `LN2/FC1:4`. Loads nothing heavy.

`vitplast.rescale` carries them out.
"""

from __future__ import annotations

import math

from vitplast.errors import InputError, UnknownNameError

#: Kind of rescaling: what is multiplied by c and what is divided by c.
KINDS = {
    "LN2/FC1": "(gamma_2, beta_2, W_1) to (c gamma_2, c beta_2, W_1 / c)",
    "LN1/qkv": "(gamma_1, beta_1, W_qkv) to (c gamma_1, c beta_1, W_qkv / c)",
    "V/O": "(V, b_V, O) to (c V, c b_V, O / c)",
    "Q/K": "(Q, b_Q, K, b_K) to (c Q, c b_Q, K / c, b_K / c)",
}
#: Smallest and largest factor.
FACTORS = (1e-6, 1e6)


def parse_rescaling(text: str) -> tuple[str, float] | None:
    """`"KIND:c"` to (kind, c), all blocks at once; None where nothing changes: an empty text, or c = 1.

    Parameters
    ----------
    text
        One of `KINDS`, a colon and a factor from 1e-6 to 1e6. Powers of two round nothing.

    Raises
    ------
    UnknownNameError
        If the kind is not known.
    InputError
        If there is no factor, or it is no number in that range.

    Examples
    --------
    >>> parse_rescaling("LN2/FC1:4"), parse_rescaling("LN1/qkv:1"), parse_rescaling("")
    (('LN2/FC1', 4.0), None, None)
    """
    if not text.strip():
        return None
    kind, _, number = (part.strip() for part in text.partition(":"))
    if kind not in KINDS:
        raise UnknownNameError("kind of rescaling", kind, KINDS, "A factor follows it, as in LN2/FC1:4.")
    try:
        c = float(number)
    except ValueError:
        c = math.nan
    low, high = FACTORS
    if not low <= c <= high:
        raise InputError(f"rescale={text!r} needs a factor from {low:g} to {high:g} after the colon, as in {kind}:4")
    return None if c == 1 else (kind, c)


def canonical(text: str) -> str:
    """One spelling for each rescaling, empty for none.

    Examples
    --------
    >>> canonical("LN2/FC1: 4.0"), canonical("LN2/FC1:1")
    ('LN2/FC1:4', '')
    """
    found = parse_rescaling(text)
    return "" if found is None else f"{found[0]}:{found[1]!r}".removesuffix(".0")
