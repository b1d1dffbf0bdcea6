"""Clusters of image sets: an image set and its corruptions show the same images, so they count as one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import xarray as xr

from vitplast.errors import InputError, UnknownNameError

#: Cluster of the paper's corrupted sets: the test images of CIFAR-10 under five corruptions.
PAPER_CLUSTERS = {
    name: "Cifar10" for name in ("Contrast", "Gaussian noise", "Motion blur", "Snow", "Speckle noise")
}  # fmt: skip
#: Sets whose published files show the test images of another set.
SAME_IMAGES = {"cifar10_c": "cifar10", "cifar100_c": "cifar100"}


def cluster_of(dataset: str) -> str:
    """`SET:CORRUPTION:SEVERITY -> SET`; the names of the paper's table by `PAPER_CLUSTERS`; others are their own.

    The published corrupted sets belong to the set they were made of, both divisions of a DomainNet domain together.

    Source: section 4 of the decision rules (CIFAR-10 and its corruptions share images).

    Raises
    ------
    InputError
        If the name is empty or no text.

    Examples
    --------
    >>> cluster_of("photocrops:snow:5"), cluster_of("Snow"), cluster_of("digits"), cluster_of("folder:cats")
    ('photocrops', 'Cifar10', 'digits', 'folder:cats')
    >>> cluster_of("cifar10_c:snow:5"), cluster_of("domainnet_sketch_official")
    ('cifar10', 'domainnet_sketch')
    """
    if not isinstance(dataset, str) or not dataset:
        raise InputError(f"the name of an image set must be text, got {dataset!r}")
    if dataset in PAPER_CLUSTERS:
        return PAPER_CLUSTERS[dataset]
    first, *rest = dataset.split(":")
    if first == "folder":
        return ":".join([first, *rest[:1]])
    return SAME_IMAGES.get(first, first.removesuffix("_official"))


def clusters(datasets: Sequence[str]) -> list[str]:
    """`{cluster_of(d)}`: the different clusters among `datasets`, in the order in which they first appear."""
    return list(dict.fromkeys(cluster_of(str(d)) for d in datasets))


def cluster_means(
    table: xr.DataArray | xr.Dataset, dim: str = "dataset", of: Callable[[str], str] = cluster_of
) -> xr.DataArray | xr.Dataset:
    """`mean over the sets of a cluster`: `dim` becomes `cluster`, variables without it stay as they are.

    Every set weighs the same within its cluster. NaN if a set of the cluster is NaN: a mean over fewer sets for one
    configuration than for another would compare tasks, not configurations.

    Parameters
    ----------
    table : DataArray or Dataset
        With a labelled dimension `dim`, in any unit.
    of : callable
        The cluster of a name.

    Returns
    -------
    Same type, `cluster` in place of `dim`, and a coordinate sets (cluster): the number of sets.

    Raises
    ------
    UnknownNameError
        If the table has no dimension `dim`.
    """
    if dim not in table.dims:
        raise UnknownNameError("dimension", dim, map(str, table.dims))
    labels = [of(str(name)) for name in table[dim].values]
    order = list(dict.fromkeys(labels))
    if isinstance(table, xr.Dataset):
        with_dim = [n for n, v in table.data_vars.items() if dim in v.dims and v.dtype.kind in "biuf"]
        parts = {n: cluster_means(table[n], dim, of) for n in with_dim}
        rest = {n: v for n, v in table.data_vars.items() if dim not in v.dims}
        return xr.Dataset(parts | rest, attrs=table.attrs)
    kept = table.drop_vars([n for n, c in table.coords.items() if dim in c.dims])
    rows = [kept.isel({dim: np.flatnonzero([one == c for one in labels])}).mean(dim, skipna=False) for c in order]
    means = xr.concat(rows, dim="cluster").transpose(*("cluster" if d == dim else d for d in table.dims))
    means = means.assign_coords(cluster=order, sets=("cluster", [labels.count(c) for c in order]))
    return means.assign_attrs(table.attrs)
