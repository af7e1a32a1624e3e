"""Hides what the packages that decode images warn of, in threads."""

import threading
import warnings

_PACKAGES = ("PIL", "pillow_heif", "tifffile", "imagecodecs", "pydicom", "numpy")


class _Quiet:
    """Hides warnings of these packages while any thread reads: of tags, or of sizes checked here.

    Python keeps its filters per process: a `catch_warnings` of each thread would restore those of
    another thread, and leave its own behind.
    """

    def __init__(self) -> None:
        self.lock, self.readers = threading.Lock(), 0
        self.caught = warnings.catch_warnings()

    def __enter__(self) -> None:
        with self.lock:
            if not self.readers:
                self.caught = warnings.catch_warnings()
                self.caught.__enter__()
                for module in _PACKAGES:
                    warnings.filterwarnings("ignore", module=rf"{module}(\.|$)")
            self.readers += 1

    def __exit__(self, *_: object) -> None:
        with self.lock:
            self.readers -= 1
            if not self.readers:
                self.caught.__exit__(None, None, None)


QUIET = _Quiet()
