"""Which part of a training image is cut, and whether it is mirrored: numbers, then a box."""

from dataclasses import dataclass
from functools import partial

import numpy as np

from keras_vit._base.errors import check_choice
from keras_vit.data.arrays import Array, array_namespace
from keras_vit.data.augment.change import Draws
from keras_vit.data.decode.decoder import Crop
from keras_vit.data.eval_transform import CROP_FRACTION
from keras_vit.data.resizing import PixelSize, part_to_resize, small_side_size, stretch

CROPS = ("inception", "random", "resize")


@dataclass(frozen=True)
class RandomCrop:
    """Brings an image of any size to the model's: the arguments are those of `Augmentation`.

    The size of a file is known only when it is decoded, so numbers in [0, 1) are drawn, from which
    a box follows then.
    """

    crop: str
    min_area: float
    aspect_ratio: tuple[float, float]
    flip: bool
    numbers = 5

    def __post_init__(self) -> None:
        check_choice(self.crop, "crop", CROPS)
        if not 0 < self.min_area <= 1:
            raise ValueError(f"min_area={self.min_area} must lie in (0, 1], for instance 0.05")
        low, high = self.aspect_ratio
        if not 0 < low <= high:
            raise ValueError(
                f"aspect_ratio={self.aspect_ratio} must be (low, high) with 0 < low <= high"
            )

    def draw(self, uniform: np.ndarray, size: PixelSize) -> Draws:
        """Draw what `Change.draw` does."""
        draws: Draws = {}
        if self.crop != "resize":
            draws["place"] = uniform[:, :4]
        if self.flip:
            draws["mirrored"] = (uniform[:, 4] < 0.5).astype("int32")
        return draws

    def to_decode(self, draws: Draws) -> Crop | None:
        """Return the box of an inception crop, to decode only this part; None for other crops."""
        return partial(self._inception_box, draws["place"]) if self.crop == "inception" else None

    def _inception_box(self, place: Array, shape: Array) -> Array:
        """Draw a box as `tf.image.sample_distorted_bounding_box`, which the released code uses.

        That draws the aspect ratio evenly until a box with it fits, which is the same as evenly
        among those that fit; then the height evenly between the least and the largest possible.
        """
        xp = array_namespace(shape)
        sides = xp.cast(shape, xp.float32)
        height, width = xp.unstack(sides)
        ratio, part = place[0], place[1]
        widest = width / height
        low = xp.maximum(widest * self.min_area, self.aspect_ratio[0])
        high = xp.minimum(widest / self.min_area, self.aspect_ratio[1])
        ratio = low + ratio * (high - low)
        most = xp.minimum(height, width / ratio)
        least = xp.minimum(xp.sqrt(height * width * self.min_area / ratio), most)
        least, most = xp.round(least), xp.round(most)
        rows = xp.maximum(least + xp.floor(part * (most - least + 1)), 1.0)
        columns = xp.clip_by_value(xp.round(rows * ratio), 1.0, width)
        # The whole image where no box fits.
        box = xp.where(low <= high, xp.stack([rows, columns]), sides)
        begin = xp.floor(place[2:] * (sides - box + 1))
        return xp.cast(xp.concat([begin, box], axis=0), xp.int32)

    def apply(self, image: Array, size: PixelSize, draws: Draws) -> Array:
        """Bring what was decoded to the model's size, float32."""
        xp, channels = array_namespace(image), image.shape[-1]
        if self.crop == "random":
            begin, part = _part(xp.shape(image)[:2], size, draws["place"])
            image = xp.slice(image, xp.concat([begin, [0]], 0), xp.concat([part, [-1]], 0))
        if self.flip:  # before the resize, while the image is bytes and mostly smaller
            image = xp.reverse(image, xp.range(1, 1 + draws["mirrored"]))  # the axis 1, or none
        if self.crop != "random":
            return stretch(image, size)
        resized = small_side_size(xp.shape(image)[:2], size, CROP_FRACTION)
        begin = xp.concat([_window(resized, size, draws["place"]), [0]], 0)
        return xp.slice(stretch(image, resized), begin, (*size, channels))

    def matrix(self, shape: Array, size: PixelSize, draws: Draws) -> Array:
        """Return where in the whole image each pixel comes from; see `affine.transform`.

        Args:
            shape: height and width of the whole image, int32 array or tensor.
            size: of the model's image.

        Returns:
            float32 `(6,)`.
        """
        xp = array_namespace(shape)
        sides, target = xp.cast(shape, xp.float32), xp.constant(size, xp.float32)
        top, left, begin = 0.0, 0.0, xp.zeros_like(sides)
        if self.crop == "inception":
            box = xp.cast(self._inception_box(draws["place"], shape), xp.float32)
            top, left, sides = box[0], box[1], box[2:]
        scale = sides / target
        if self.crop == "random":
            begin, shape = _part(shape, size, draws["place"])
            (top, left), sides = xp.unstack(xp.cast(begin, xp.float32)), xp.cast(shape, xp.float32)
            resized = small_side_size(shape, size, CROP_FRACTION)
            scale = sides / xp.cast(resized, xp.float32)
            begin = xp.cast(_window(resized, size, draws["place"]), xp.float32) * scale
        # Pixels are counted at their centers; from the right in a mirror image.
        y, x = xp.unstack(begin + scale / 2 - 0.5)
        mirrored = xp.cast(draws.get("mirrored", 0), xp.float32)
        x = x + mirrored * (sides[1] - 1 - 2 * x)
        zero = xp.zeros_like(x)
        return xp.stack([(1 - 2 * mirrored) * scale[1], zero, left + x, zero, scale[0], top + y])

    def __str__(self) -> str:
        if self.crop == "inception":
            low, high = self.aspect_ratio
            usual = self.aspect_ratio == (3 / 4, 4 / 3)
            ratio = "" if usual else f" and aspect ratios of {low:.3g} to {high:.3g}"
            words = f"inception crop of at least {100 * self.min_area:.3g} %{ratio}"
        else:
            words = "random crop" if self.crop == "random" else "resize"
        return f"{words}, flip" if self.flip else words


def _part(shape: Array, size: PixelSize, place: Array) -> tuple[Array, Array]:
    """Return where the part of an image that is resized begins, and its sides; int32 `(2,)`."""
    xp, part = array_namespace(shape), part_to_resize(shape, size)
    room = xp.cast(shape - part + 1, xp.float32)
    return xp.cast(xp.floor(place[2:] * room), xp.int32), part


def _window(resized: Array, size: PixelSize, place: Array) -> Array:
    """Return where a crop of this size begins in the resized image; int32 `(2,)`."""
    xp = array_namespace(resized)
    room = xp.cast(resized - xp.constant(size, xp.int32) + 1, xp.float32)
    return xp.cast(xp.floor(place[2:] * room), xp.int32)
