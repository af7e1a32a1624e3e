"""The names of ImageNet's classes, in the order of the released heads.

`imagenet-1k.txt` and `imagenet-21k.txt` hold a WordNet lemma a line. Derived from timm 1.0.31
(Apache-2.0, Ross Wightman): `data/_info/imagenet_synsets.txt` and `imagenet21k_goog_synsets.txt`
for the order, `imagenet_synset_to_lemma.txt` for the words, which are WordNet 3.0's (Princeton
University; its licence, which allows copies that name it, is in `LICENSE-WordNet.txt`).
"""

from collections.abc import Sequence
from functools import cache
from importlib import resources

# Number of classes of a released head -> the set it was trained on.
SETS = {1000: "imagenet-1k", 21_843: "imagenet-21k"}


@cache
def class_names(name: str) -> tuple[str, ...] | None:
    """Return the names of a set, `"imagenet-1k"` or `"imagenet-21k"`; None for any other.

    >>> class_names("imagenet-1k")[281]
    'tabby, tabby cat'
    """
    if name not in SETS.values():
        return None
    text = resources.files(__name__).joinpath(f"{name}.txt").read_text(encoding="utf-8")
    return tuple(text.splitlines())


def set_of_names(names: Sequence[str] | None) -> str | None:
    """Return the set of class names that these are, if it is one of `SETS`."""
    candidate = SETS.get(len(names)) if names is not None else None
    return candidate if candidate is not None and names == class_names(candidate) else None


def names_of_head(num_classes: int) -> tuple[str, ...] | None:
    """Return the names that a released head of so many classes has; None where nobody knows."""
    return class_names(SETS[num_classes]) if num_classes in SETS else None
