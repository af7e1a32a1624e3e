"""Which examples to hold out, so that both sides have their share of every class or label."""

from typing import Any

import numpy as np

QUANTILES = 10  # bins of numbers; fewer where a bin would be too small to hold out one of it
MOST_EXCHANGES = 20_000  # units times labels


def held_out(strata: np.ndarray, fraction: float, seed: int = 0, groups: Any = None) -> np.ndarray:
    """Return which examples to hold out.

    Args:
        strata: Integers `(examples,)`, of one class each; or `(examples, strata)` of 0 and 1, where
            an example is in any number of them.
        fraction: The part to hold out, in (0, 1).
        seed: Of the choice.
        groups: None, or one per example; a group is never on both sides.

    Returns:
        `(examples,)` of bool. With a class per example and no groups, the fraction of every class,
        at least one, but never its only one. Else by iterative stratification.

    Raises:
        ValueError: The fraction is out of range, the groups do not match, or a side is empty.

    Example:

    >>> import numpy as np
    >>> from keras_vit.tasks.splitting import held_out
    >>> mask = held_out(np.repeat([0, 1], [8, 4]), 0.5, groups=np.repeat(range(6), 2))
    >>> int(mask[:8].sum()), int(mask[8:].sum())
    (4, 2)
    """
    if not 0 < fraction < 1:
        raise ValueError(f"fraction={fraction!r} must lie in (0, 1), such as 0.1.")
    if groups is None and strata.ndim == 1:
        mask = of_every_class(strata, fraction, seed)
    else:
        names, unit = np.arange(len(strata)), np.arange(len(strata))
        if groups is not None:
            names, unit = np.unique(np.asarray(groups), return_inverse=True)
        if unit.shape != (len(strata),):
            raise ValueError(
                f"{np.shape(groups)} groups do not match {len(strata):,} targets: give one each."
            )
        mask = iterative_stratification(_counts(strata, unit, len(names)), fraction, seed)[unit]
    if mask.all() or not mask.any():
        raise ValueError(
            f"fraction={fraction} of {len(strata):,} examples leaves one side empty: there are not "
            f"enough {'examples' if groups is None else 'groups'}. Give more, or another fraction."
        )
    return mask


def of_every_class(classes: np.ndarray, fraction: float, seed: int) -> np.ndarray:
    """Return the same fraction of every class, at least one example, but never its only one."""
    mask = np.zeros(len(classes), bool)
    order = np.argsort(classes, kind="stable")
    present, starts = np.unique(classes[order], return_index=True)
    for name, rows in zip(present, np.split(order, starts[1:]), strict=False):  # or no class
        count = min(max(round(len(rows) * fraction), 1), len(rows) - 1)
        # A generator per class: one more image of roses leaves the tulips where they are.
        mask[rows[np.random.default_rng([seed, name]).permutation(len(rows))[:count]]] = True
    return mask


def _counts(strata: np.ndarray, unit: np.ndarray, units: int) -> np.ndarray:
    """Count each unit's examples, in all and per stratum: float32 `(units, 1 + strata)`."""
    labels = 1 + (strata.max() + 1 if strata.ndim == 1 else strata.shape[1])
    counts = np.zeros((units, labels), np.float32)
    np.add.at(counts[:, 0], unit, 1)
    if strata.ndim == 1:
        np.add.at(counts, (unit, 1 + strata), 1)
    else:
        np.add.at(counts[:, 1:], unit, strata)
    return counts


def iterative_stratification(counts: np.ndarray, fraction: float, seed: int = 0) -> np.ndarray:
    """Choose units to hold out (Sechidis et al. 2011, "On the Stratification of Multi-label Data").

    The label that the fewest units have is dealt with first, as later ones can still be evened out.
    Its units, the largest first, go to the side that lacks the larger part of what it is to have of
    the label; where both lack as much, of examples. Last, a unit changes sides where that brings
    all labels together nearer to their parts: groups have many labels at once.

    Args:
        counts: `(units, 1 + labels)`: the examples of a unit, and how many have each label. A unit
            is an example, or a group of them.
        fraction: The part to hold out.
        seed: Of the order among units of one size.

    Returns:
        `(units,)` of bool.
    """
    rng = np.random.default_rng(seed)
    # By size, the largest first, in random order among equals: small ones fill what is missing.
    shuffled = rng.permutation(len(counts))
    order = shuffled[np.argsort(-counts[shuffled, 0], kind="stable")]
    total = np.maximum(counts.sum(axis=0), 1)
    share = counts / total  # of all that have a label
    # What the held-out side lacks of its part, less what the other one lacks of its own.
    lack = np.zeros(counts.shape[1])
    mask, is_open, has = np.zeros(len(counts), bool), np.ones(len(counts), bool), counts > 0
    remaining = has.sum(axis=0)
    while is_open.any():
        labels = np.flatnonzero(remaining[1:]) + 1
        # Last, units without a label, by their examples alone.
        label = labels[remaining[labels].argmin()] if labels.size else 0
        units = order[(has[:, label] & is_open)[order]]
        for unit in units:
            lacks = lack[label] or lack[0] or rng.uniform(fraction - 1, fraction)
            mask[unit] = lacks > 0
            lack += share[unit] * (-1 / fraction if mask[unit] else 1 / (1 - fraction))
        is_open[units] = False
        remaining = remaining - has[units].sum(axis=0)
    return _improved(mask, counts, fraction, order)


def _improved(
    mask: np.ndarray, counts: np.ndarray, fraction: float, order: np.ndarray
) -> np.ndarray:
    """Moves units, or exchanges two, while the held-out counts come nearer, by chi-squared."""
    total = np.maximum(counts.sum(axis=0), 1)
    scaled = counts / np.sqrt(total)
    excess = scaled[mask].sum(axis=0) - fraction * np.sqrt(total)
    is_small = counts.size <= MOST_EXCHANGES  # of many units, moving one alone is fine enough
    is_moving = True
    while is_moving:
        is_moving = False
        for unit in order:
            moved = excess + scaled[unit] * (-1 if mask[unit] else 1)
            others = np.flatnonzero(mask != mask[unit]) if is_small else np.arange(0)
            exchanged = moved + scaled[others] * (1 if mask[unit] else -1)
            candidates = np.concatenate([moved[None], exchanged])
            costs = (candidates**2).sum(axis=1)
            best = costs.argmin()
            if excess @ excess - costs[best] > 1e-6:  # else by rounding without end
                excess, is_moving = candidates[best], True
                mask[[unit, *others[best - 1 : best]]] ^= True
    return mask


def quantile_bins(values: np.ndarray, fraction: float) -> np.ndarray:
    """Return the quantile that each of the numbers `(examples,)` is in, from 0 on.

    >>> quantile_bins(np.array([5.0, 1.0, 2.0, 9.0]), 0.5).tolist()
    [1, 0, 0, 1]
    """
    smaller_side = min(fraction, 1 - fraction) * len(values)
    bins = max(min(QUANTILES, int(smaller_side)), 1)
    edges = np.quantile(values, np.arange(1, bins) / bins)
    return np.searchsorted(edges, values, side="right")
