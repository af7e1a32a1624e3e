"""How far the images that are asked about have moved from those of the training, on average."""

import threading
from collections import deque

import numpy as np

from keras_vit.layers.novelty_score import unit_rows

WINDOW, LEAST = 1000, 100  # images, of which the mean is 0.03 and 0.1 away by chance


class FeatureDrift:
    """The distance of the mean features of the last images from that of the training images.

    In standard deviations of the training features, divided by their length as for the novelty:
    their variance, summed over the coordinates, is 1 - |mean|^2. By chance it is 1 / sqrt(images).
    """

    def __init__(self, mean: np.ndarray) -> None:
        self._mean = np.asarray(mean, np.float64)
        self._spread = max(1 - float(self._mean @ self._mean), 1e-6) ** 0.5  # of a float32 mean
        self.rows: deque[np.ndarray] = deque(maxlen=WINDOW)
        self._guard = threading.Lock()  # the model's thread adds, that of requests reads

    def add(self, features: np.ndarray) -> None:
        """Takes the features of images `(images, dimension)`; those not finite are left out."""
        rows = unit_rows(features).astype("float32")
        with self._guard:
            self.rows.extend(rows[np.isfinite(rows).all(axis=1)])

    def value(self) -> float | None:
        """Return the distance; None for fewer than `LEAST` images."""
        with self._guard:
            rows = np.array(self.rows)
        if len(rows) < LEAST:
            return None
        return float(np.linalg.norm(rows.mean(axis=0) - self._mean) / self._spread)
