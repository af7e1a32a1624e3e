"""The hybrid: patches are cut from a ResNet's feature map (ViT paper, section 3.1)."""

from collections.abc import Sequence


def feature_stride(resnet: Sequence[int] | None) -> int:
    """Pixels of the image for one of the feature map, of which sizes are rounded up.

    The stem halves twice, and so does every stage but the first once.

    >>> feature_stride((3, 4, 9)), feature_stride(()), feature_stride(None)
    (16, 4, 1)
    """
    return 1 if resnet is None else 4 * 2 ** max(len(resnet) - 1, 0)
