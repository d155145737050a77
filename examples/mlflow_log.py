"""Losses in MLflow: ``callbacks = ["examples.mlflow_log:MLflow"]``.

``pip install mlflow``. Each model is a run of the experiment ``seqgc``, at ``MLFLOW_TRACKING_URI``.
If seqgc's run fails or is interrupted, MLflow's runs stay ``RUNNING``.
"""

from collections.abc import Mapping

from mlflow import MlflowClient


class MLflow:
    """Callback that logs the losses of each model as a run of MLflow."""

    def __init__(self, experiment: str = "seqgc") -> None:
        self._client, self._runs = MlflowClient(), dict[str, str]()
        known = self._client.get_experiment_by_name(experiment)
        self._where = known.experiment_id if known else self._client.create_experiment(experiment)

    def on_step(self, model: str, step: int, loss: float, metrics: Mapping[str, float]) -> None:
        if model not in self._runs:
            self._runs[model] = self._client.create_run(self._where, run_name=model).info.run_id
        for name, value in {"loss": loss, **metrics}.items():
            self._client.log_metric(self._runs[model], name, value, step=step)

    def on_validation(self, model: str, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._client.log_metric(self._runs[model], f"validation/{name}", value, step=step)

    def on_end(self, _: object) -> None:
        for run in self._runs.values():
            self._client.set_terminated(run)
