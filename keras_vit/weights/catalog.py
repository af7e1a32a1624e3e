"""Looks up released weights by name."""

import fnmatch
from pathlib import Path
from types import SimpleNamespace

from keras_vit._base.errors import did_you_mean, similar_names
from keras_vit.models.image_model import ImageModel
from keras_vit.weights.containers.checkpoint_file import OPENERS
from keras_vit.weights.containers.keras_file import SUFFIXES
from keras_vit.weights.containers.sums import INDEX_SUFFIX
from keras_vit.weights.released import RELEASED, Weights

# Arguments that distinguish the architectures; None where a family does not have one.
ARCHITECTURE_KEYS = (
    *("patch_size", "hidden_dim", "depth"),
    *("tokens_mlp_dim", "resnet", "depths", "width"),
)


class WeightsList(tuple[Weights, ...]):
    """Rows of the catalog; prints as a table."""

    def __repr__(self) -> str:
        head = ("model", "tag", "pixels", "classes", "MB", "top-1", "pixel values", "license",
                "from")  # fmt: skip
        rows = [head, *map(_cells, self)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def list_weights(pattern: str = "*") -> WeightsList:
    """Released weights by model, tag or `MODEL:TAG`; prints as a table.

    Args:
        pattern: A shell pattern; a model or a `MODEL:TAG` for its rows alone; or another word,
            which any of the three may contain. Upper and lower case are the same.

    Example:

    >>> import keras_vit
    >>> [row.tag for row in keras_vit.weights.list_weights("ViT-H/14")]
    ['orig_in21k', 'deit3_in1k', 'deit3_in22k_ft_in1k', 'mae']
    >>> {row.tag for row in keras_vit.weights.list_weights("dinov2")} >= {"dinov2", "hf_dinov2"}
    True
    """
    pattern = pattern.lower()
    exact = any(pattern in (row.model.lower(), row.name.lower()) for row in RELEASED)
    if not exact and not set(pattern) & set("*?["):
        pattern = f"*{pattern}*"
    return WeightsList(
        row
        for row in RELEASED
        if any(fnmatch.fnmatch(n.lower(), pattern) for n in (row.model, row.tag, row.name))
    )


def find_for_model(tag: str, model: ImageModel | SimpleNamespace) -> Weights | None:
    """Return the row of a tag for a model of these sizes; None when `tag` looks like a file."""
    if _looks_like_file(tag):
        return None
    if ":" in tag:
        return find_named(tag)
    fitting = {row.tag: row for row in RELEASED if _fits(row, model)}
    if tag in fitting:
        return fitting[tag]
    elsewhere = sorted({row.model for row in RELEASED if row.tag == tag})
    if elsewhere:
        raise ValueError(
            f"weights={tag!r} were released for {', '.join(elsewhere)}, not for a model of these "
            f"sizes. For this one: {', '.join(fitting) or 'none'}."
        )
    tags = fitting or {row.tag for row in RELEASED}
    raise ValueError(f"No file and no released weights {tag!r}. {did_you_mean(tag, tags)}")


def find_named(name: str) -> Weights | None:
    """Return the row of a `"MODEL:TAG"`; None when `name` looks like a file."""
    if _looks_like_file(name):
        return None
    rows = {row.name.lower(): row for row in RELEASED}
    if name.lower() in rows:
        return rows[name.lower()]
    names = [row.name for row in RELEASED]
    if ":" not in name:  # a tag alone: propose the models that have it
        names = [known for known in names if known.split(":")[1] == name] or names
    if len(names) < len(RELEASED) or similar_names(name, names):
        hint = did_you_mean(name, names)
    else:
        hint = "Is it the name of a file?"  # a hundred names would hide what follows
    raise ValueError(
        f"No file and no released weights {name!r}. {hint} "
        "Give MODEL:TAG, as in 'ViT-B/16:augreg_in21k'; list_weights() shows all."
    )


def license_of(name: str) -> str | None:
    """Return the license of released weights, by `"MODEL:TAG"` or the name of their cached file.

    None where it is not known.

    >>> license_of("ViT-Ti/16:augreg_in21k"), license_of("mine.safetensors")
    ('Apache-2.0', None)
    """
    names = (name.lower(), Path(name).name.lower())
    rows = (row for row in RELEASED if {row.name.lower(), row.file_name.lower()} & {*names})
    return next((row.license for row in rows), None)


def _looks_like_file(name: str) -> bool:
    return name.lower().endswith((*OPENERS, *SUFFIXES, INDEX_SUFFIX)) or Path(name).is_absolute()


def _fits(row: Weights, model: ImageModel | SimpleNamespace) -> bool:
    """Return whether a model has the sizes of a row's; FlexiViT's patches may be of any size."""
    sizes = row.sizes
    return all(
        getattr(model, name, None) in (sizes.get(name), (sizes.get(name),) * 2)
        or (row.layout, name) == ("flexivit", "patch_size")
        for name in ARCHITECTURE_KEYS
    )


def _cells(row: Weights) -> tuple[str, ...]:
    _, _, host, *folders = row.url.split("/")
    source = "/".join(folders[:2]) if "huggingface" in host else f"gs://{folders[0]}"
    return (
        row.model,
        row.tag,
        str(row.pixels),
        str(row.num_classes or "-"),
        f"{row.megabytes:,}",
        f"{row.top1:.2f} ({row.source})" if row.top1 else "-",
        row.preprocessing,
        row.license,
        source + (" (file name guessed)" if row.url_is_guessed else ""),
    )
