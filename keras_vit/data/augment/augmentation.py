"""How training images are changed, as a small table of settings."""

from dataclasses import dataclass

from keras_vit._base.errors import check_choice
from keras_vit.data.augment.rand_augment import check_rand_augment

CROPS = ("inception", "random", "resize")


@dataclass(frozen=True)
class Augmentation:
    """Random changes of training images: all but the last two of each by itself (`training_image`).

    Args:
        crop: "inception" cuts a box of random area and aspect ratio and resizes it, as the released
            code trained; "random" resizes to 8/7 of the size and cuts at a random place, as the
            transfer configurations; "resize" stretches the whole image.
        min_area: the smallest part of the image that an inception crop may keep, in (0, 1].
        aspect_ratio: the range of width / height of an inception crop, before resizing.
        flip: mirror left and right with probability 1/2. Not for digits, letters and signs.
        shift: move the image by up to this many pixels each way; what comes in is black. Together
            with the next three, also by fractions of a pixel.
        rotation: turn the image by up to this many degrees each way, 0 to 180.
        zoom: scale height and width, each by itself, by up to about this fraction each way, 0 to 1.
        shear: move each row against the next by up to this many pixels each way, 0 to 1.
        rand_augment: number of operations and their magnitude, as in (2, 10); see `rand_augment`.
        operations: the operations to choose from, such as ("autocontrast", "equalize"); None for
            all sixteen.
        three_augment: change colors as DeiT III does; see `three_augment`.
        erasing: probability of filling a random box with noise; see `random_erasing`.
        mixup: alpha of `mixup`, which blends pairs of images and of one-hot labels; 0 for none.
        cutmix: alpha of `cutmix`; 0 for none. With both, each batch has one of them by a fair coin.

    Raises:
        ValueError: a value out of range or an unknown name.

    Example:
        >>> Augmentation(min_area=0.3).flip
        True
    """

    crop: str = "inception"
    min_area: float = 0.05
    aspect_ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: bool = True
    shift: int = 0
    rotation: float = 0.0
    zoom: float = 0.0
    shear: float = 0.0
    rand_augment: tuple[int, float] | None = None
    operations: tuple[str, ...] | None = None
    three_augment: bool = False
    erasing: float = 0.0
    mixup: float = 0.0
    cutmix: float = 0.0

    def __post_init__(self) -> None:
        check_choice(self.crop, "crop", CROPS)
        if not 0 < self.min_area <= 1:
            raise ValueError(f"min_area={self.min_area} must lie in (0, 1], for instance 0.05")
        low, high = self.aspect_ratio
        if not 0 < low <= high:
            raise ValueError(
                f"aspect_ratio={self.aspect_ratio} must be (low, high) with 0 < low <= high"
            )
        if self.shift < 0:
            raise ValueError(f"shift={self.shift} must be a number of pixels, 0 or more")
        for name, largest in (("rotation", 180), ("zoom", 1), ("shear", 1)):
            if not 0 <= (value := getattr(self, name)) <= largest:
                raise ValueError(f"{name}={value} must lie in [0, {largest}]; 0 turns it off")
        if self.rand_augment is not None:
            check_rand_augment(*self.rand_augment, self.operations)
        elif self.operations is not None:
            raise ValueError(
                f"operations={self.operations} are for RandAugment: give rand_augment, too, for "
                "instance (1, 10)"
            )
        if not 0 <= self.erasing <= 1:
            raise ValueError(f"erasing={self.erasing} must lie in [0, 1], for instance 0.25")
        for name in ("mixup", "cutmix"):
            if (alpha := getattr(self, name)) < 0:
                raise ValueError(f"{name}={alpha} must be at least 0, such as 0.2; 0 turns it off")

    @property
    def is_affine(self) -> bool:
        """Whether the image is rotated, zoomed or sheared."""
        return bool(self.rotation or self.zoom or self.shear)


AUGMENTATIONS = {
    "inception": Augmentation(),
    "randaugment": Augmentation(rand_augment=(2, 10)),  # big_vision's vit_s16_i1k, with mixup 0.2
    "transfer": Augmentation(crop="random"),
    "tiny": Augmentation(crop="resize", shift=4),  # CIFAR: pad by four pixels, crop, flip
    "digits": Augmentation(crop="resize", flip=False, shift=1),  # a mirrored 2 is not a digit
    "none": Augmentation(crop="resize", flip=False),
}


def get_augmentation(augment: "Augmentation | str") -> Augmentation:
    """The augmentation itself, or the one with this name in `AUGMENTATIONS`."""
    if isinstance(augment, Augmentation):
        return augment
    return AUGMENTATIONS[check_choice(augment, "augment", AUGMENTATIONS)]
