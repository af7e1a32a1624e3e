"""How training images are changed: a small table of settings, and what they draw."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from keras_vit._base.errors import as_pair, check_choice
from keras_vit.data.augment.affine import Affine
from keras_vit.data.augment.change import Change, Draws
from keras_vit.data.augment.crops import RandomCrop
from keras_vit.data.augment.erasing import Erasing
from keras_vit.data.augment.rand_augment import RandAugment
from keras_vit.data.augment.three_augment import ThreeAugment
from keras_vit.data.random_numbers import uniform


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
        rand_augment: number of operations and their magnitude, as in (2, 10); see `RandAugment`.
        operations: the operations to choose from, such as ("autocontrast", "equalize"); None for
            all sixteen.
        three_augment: change colors as DeiT III does; see `ThreeAugment`.
        erasing: probability of filling a random box with noise; see `Erasing`.
        mixup: alpha of mixup, which blends pairs of images and of one-hot labels; 0 for none.
        cutmix: alpha of CutMix; 0 for none. With both, each batch has one of them by a fair coin.
        mixed_part: the part of the batches that are mixed at all, in (0, 1].

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
    mixed_part: float = 1.0

    def __post_init__(self) -> None:
        if self.operations is not None and self.rand_augment is None:
            raise ValueError(
                f"operations={self.operations} are for RandAugment: give rand_augment, too, for "
                "instance (1, 10)"
            )
        for name in ("mixup", "cutmix"):
            if (alpha := getattr(self, name)) < 0:
                raise ValueError(f"{name}={alpha} must be at least 0, such as 0.2; 0 turns it off")
        if not 0 < self.mixed_part <= 1:
            raise ValueError(
                f"mixed_part={self.mixed_part} must be above 0 and at most 1, such as 0.8; mixup=0 "
                "and cutmix=0 mix nothing"
            )
        _ = self.random_crop, self.changes  # which check what they are given

    @cached_property
    def random_crop(self) -> RandomCrop:
        """How an image is brought to the model's size."""
        return RandomCrop(self.crop, self.min_area, self.aspect_ratio, self.flip)

    @cached_property
    def changes(self) -> dict[str, Change]:
        """The changes of an image of the model's size that are on, in their order.

        Each draws from the stream of its name, so that a further one leaves the others as they are.
        """
        affine = Affine(self.rotation, self.zoom, self.shear, self.shift)
        rows = {
            "affine": affine if affine != Affine() else None,
            "rand_augment": self.rand_augment and RandAugment(*self.rand_augment, self.operations),
            "three_augment": ThreeAugment() if self.three_augment else None,
            "erasing": Erasing(self.erasing) if self.erasing else None,
        }
        return {name: change for name, change in rows.items() if change is not None}

    def draw(
        self,
        image_size: int | tuple[int, int],
        seed: int,
        position: int,
        *,
        count: int | None = None,
        view: int = 0,
    ) -> dict[str, Draws]:
        """Draw what happens to an image, for `training_image`, `training_mask`, `training_boxes`.

        Args:
            image_size: int or `(height, width)` of the model's images.
            seed: of the training, 0 or more.
            position: of the image among those of all passes: `pass * images + place`.
            count: draw for so many images from there on, whose numbers have a first axis then.
            view: the number of the view, where an image has several.

        Returns:
            for each change, some small arrays of NumPy. They follow from the arguments alone.

        Example:
            >>> draws = Augmentation(erasing=0.25).draw(32, seed=0, position=7)
            >>> list(draws), draws["crop"]["place"].shape
            (['crop', 'erasing'], (4,))
        """
        size = as_pair(image_size, "image_size")

        def rows(name: str, width: int) -> np.ndarray:
            return uniform(seed, name, position, count or 1, width, view)

        changes: dict[str, Any] = {"crop": self.random_crop, **self.changes}
        draws = {n: change.draw(rows(n, change.numbers), size) for n, change in changes.items()}
        return draws if count is not None else of_image(draws, 0)


def of_image(draws: dict[str, Draws], index: int) -> dict[str, Draws]:
    """Return what was drawn for one of several images."""
    return {n: {k: value[index] for k, value in part.items()} for n, part in draws.items()}


AUGMENTATIONS = {
    "inception": Augmentation(),
    "randaugment": Augmentation(rand_augment=(2, 10)),  # big_vision's vit_s16_i1k, with mixup 0.2
    "transfer": Augmentation(crop="random"),
    "maps": Augmentation(min_area=0.25),  # a twentieth shows little of what a pixel belongs to
    "tiny": Augmentation(crop="resize", shift=4),  # CIFAR: pad by four pixels, crop, flip
    "digits": Augmentation(crop="resize", flip=False, shift=1),  # a mirrored 2 is not a digit
    "none": Augmentation(crop="resize", flip=False),
}


def get_augmentation(augment: Augmentation | str) -> Augmentation:
    """Return the augmentation itself, or the one with this name in `AUGMENTATIONS`."""
    if isinstance(augment, Augmentation):
        return augment
    return AUGMENTATIONS[check_choice(augment, "augment", AUGMENTATIONS)]
