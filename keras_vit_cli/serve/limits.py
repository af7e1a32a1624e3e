"""What a server accepts, in numbers."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """What a server accepts.

    Attributes:
        batch_size: The most images per batch.
        queue: The most accepted requests in progress, those in the batch included.
        max_bytes: Of a body.
        max_images: Of a request.
        max_pixels: Height times width of an image.
        top: Number of classes in an answer.
    """

    batch_size: int
    queue: int
    max_bytes: int
    max_images: int
    max_pixels: int
    top: int
