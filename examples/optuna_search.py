"""A search with Optuna's ask and tell: each batch of trials is one run, which trains them at once.

``pip install optuna``, and seqgc's extra ``demo``; then ``python -m examples.optuna_search``.
"""

from functools import partial

import optuna
import torch

from seqgc import Model, TrainingPlan, registered_model, train, workers


def model_of(trial: optuna.Trial) -> Model:
    """Return the model of a trial."""
    adam = partial(torch.optim.Adam, lr=trial.suggest_float("lr", 1e-5, 1.0, log=True))
    return registered_model(f"trial-{trial.number}", module="mlp", optimizer=adam)


def search(*, batches: int = 4, trials: int = 8, steps: int = 30) -> optuna.Study:
    """Return the study after ``batches`` batches of trials, each a run on four workers."""
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0))
    with workers.local(4) as crew:
        for _ in range(batches):
            asked = [study.ask() for _ in range(trials)]
            models = [model_of(trial) for trial in asked]
            result = train(TrainingPlan(models=models, scheme="gc-rep:s=1", steps=steps), crew)
            for trial, model in zip(asked, models, strict=True):
                if model.name in result.ranking:
                    study.tell(trial, result.evaluations[model.name].loss)
                else:  # its model has diverged
                    study.tell(trial, state=optuna.trial.TrialState.FAIL)
    return study


if __name__ == "__main__":
    print(search().best_params)
