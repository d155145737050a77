"""Losses in TensorBoard: ``callbacks = ["examples.tensorboard_log:TensorBoard"]``.

``pip install tensorboard``. ``tensorboard --logdir tensorboard`` then shows a curve per model.
"""

from collections.abc import Mapping

from torch.utils.tensorboard import SummaryWriter


class TensorBoard:
    """Callback that writes the losses of each model to its own folder."""

    def __init__(self, folder: str = "tensorboard") -> None:
        self._folder, self._writers = folder, dict[str, SummaryWriter]()

    def on_step(self, model: str, step: int, loss: float, metrics: Mapping[str, float]) -> None:
        if model not in self._writers:
            self._writers[model] = SummaryWriter(f"{self._folder}/{model}")
        for name, value in {"loss": loss, **metrics}.items():
            self._writers[model].add_scalar(name, value, step)

    def on_validation(self, model: str, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._writers[model].add_scalar(f"validation/{name}", value, step)

    def on_end(self, _: object) -> None:
        for writer in self._writers.values():
            writer.close()
