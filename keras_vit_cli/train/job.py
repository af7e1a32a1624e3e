"""The options of a training run as an object, and the folder that it writes."""

import os
from dataclasses import dataclass, fields
from pathlib import Path

from keras_vit._base.output_folder import OutputFolder
from keras_vit_cli.options.train import TrainOptions

# The files of a complete run, and those that are needed only until it is complete.
RUN_FILES = (
    *("model.keras", "best.keras", "saved_models/*", "tensorboard/*"),
    *("config.json", "history.csv", "images.csv", "report.json", "report.md", "report.html"),
    *("calibration.png", "confusion.png", "curves.png", "mistakes.png"),
    *("precision_recall.png", "numbers.png", "iou.png", "overlays.png"),
)
CHOSEN = "weights.json"  # by --weights auto, so that a resumed run does not choose again
SCRATCH_FILES = ("checkpoints/*", CHOSEN)


@dataclass(frozen=True)
class Job(TrainOptions):
    """The options of `keras-vit train`; None leaves the choice to the recipe."""

    @property
    def output(self) -> OutputFolder:
        """The folder of the run, and the one where it is until it is complete."""
        source = self.data.removeprefix("records:").removeprefix("tfds:")
        # A pattern such as /data/train-* is that of files in a folder.
        is_pattern = any(c in source for c in "*?[") and not Path(source).expanduser().exists()
        folder = str(Path(source).parent) if is_pattern else source
        inputs = [folder, self.data_dir, self.weights, self.teacher]
        return OutputFolder(
            self.out,
            "run",
            staging=f"{Path(os.path.abspath(self.out)).name}.partial",
            results=RUN_FILES,
            scratch=SCRATCH_FILES,
            protected=[Path(path).expanduser() for path in inputs if path is not None],
            resumable=True,
        )


_ATTRIBUTES = "".join(
    f"    {field.name}: {field.metadata['option'].help}.\n" for field in fields(Job)
).replace("*", r"\*")  # of a pattern, and not of reStructuredText
Job.__doc__ = f"{Job.__doc__}\n\nAttributes:\n{_ATTRIBUTES}"
