"""Models and data of all kinds, newcomers among them."""

import math
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from fedpac.engines import ProcessEngine, SerialEngine
from fedpac.engines.site import Site
from fedpac.errors import ConfigError
from fedpac.message import Message
from fedpac.newcomers import Reception
from fedpac.testing.engines import Reversed
from fedpac.testing.tiny import Finished, number_data, number_model, run_federation, tiny_data, tiny_model
from fedpac.testing.trial import ROUNDS, Trial, finite, unchanged
from fedpac.testing.verdicts import Violation, require, require_same
from fedpac.training import evaluate


def plain_run(trial: Trial) -> None:
    losses = [score.loss for report in trial.plain.reports for score in report.scores]
    require(all(map(math.isfinite, losses)), "a test loss is infinite")


def batch_norm_and_dropout(trial: Trial) -> None:
    runs: list[Finished] = []
    before = torch.get_rng_state()
    try:
        for seed, engine in ((1, SerialEngine), (2, Reversed)):
            torch.manual_seed(seed)
            runs.append(trial.run(model=tiny_model("norm"), engine=engine))
    finally:
        torch.set_rng_state(before)
    require_same(runs[1], runs[0], "with another global seed of torch and another order of clients")
    for name, part in runs[0].server.state.items():
        if isinstance(part, dict) and "body.1.num_batches_tracked" in part:
            require(part["body.1.num_batches_tracked"].dtype == torch.int64, f"'{name}' makes a mean of a counter")
            require(bool((part["body.1.running_var"] > 0).all()), f"'{name}' has a running variance of 0 or less")


def trains_a_model(kind: str) -> Any:
    def look(trial: Trial) -> None:
        finite(trial.run(model=tiny_model(kind), rounds=2))

    return look


def one_sample_each(trial: Trial) -> None:
    finite(trial.run(data=tiny_data((1, 1, 1)), rounds=2))


def training_helps(trial: Trial) -> None:
    method = trial.method()
    data = tiny_data((16, 16, 16), [[0, 1], [1, 2], [2, 3]], tests=20)
    accuracies = run_federation(method, rounds=6, data=data, epochs=4).accuracies(method.reported)
    mean = sum(accuracies) / len(accuracies)
    require(mean > 0.5, f"its {method.reported} models are right in {mean:.0%} of all cases; a guess is in 25 %")


def another_recipe(trial: Trial) -> str | None:
    """AdamW along a cosine, with everything else that a recipe can say: here and in workers, and not in vain."""
    recipe: dict[str, Any] = {
        "optimizer": "adamw", "schedule": "cosine", "warmup": 2, "clip": 1.0, "label_smoothing": 0.1,
        "class_weights": "balanced",
    }  # fmt: skip
    here = trial.run(**recipe)
    finite(here)
    elsewhere = trial.run(engine=partial(ProcessEngine, workers=2), **recipe)
    require_same(elsewhere, here, "in two worker processes")
    ignored = here.scores() == trial.plain.scores()
    return "it does not train by train(): the recipe's optimizer, schedule and loss have no effect" if ignored else None


def welcomes_newcomers(trial: Trial) -> str | None:
    method, finished = trial.method(), trial.plain
    gets, client = method.newcomer(), finished.task.clients
    if not gets.labelled:
        return "newcomer() promises nothing: a newcomer gets no model until it takes part"
    own = tiny_data((6,), [[0, 1]])[0]
    nobody = replace(own, train=replace(own.train, index=own.train.index[:0]))
    for data in [own, nobody] if gets.without else [own]:
        site = Site(finished.task, method, {client: data})
        with unchanged("welcome() changes the server's state", finished.server.state):
            down = Reception(method, finished.server).welcome(client, len(data.train), site.work)
        require(Message.from_bytes(down.to_bytes()) == down, "what welcome() gives does not survive bytes")
        loss = evaluate(site.model_of(client, "new", ROUNDS + 1, down), *data.test.tensors())[1]
        require(math.isfinite(loss), f"with {len(data.train)} samples its model has an infinite test loss")
        require(not site.store.newest(client), "something of a newcomer is kept")
    return None


def predicts_numbers(trial: Trial) -> str | None:
    method = trial.method()
    how: dict[str, Any] = {"data": number_data(), "model": number_model(), "classes": 0, "participation": 1.0}
    if method.needs_classes:
        try:
            trial.start(method, **how)
        except ConfigError:
            return "its rule needs classes: it refuses to predict numbers"
        raise Violation("needs_classes is true, but it begins to predict numbers")
    finished = trial.run(method, **how, rounds=5, lr=0.02, epochs=5)
    finite(finished)
    first, last = (
        sum(score.loss for score in report.scores if score.which == method.reported)
        for report in (finished.reports[0], finished.reports[-1])
    )
    values = finished.accuracies(method.reported)
    explained = sum(values) / len(values)
    learned = explained > 0.2 or last < first  # one may be done after the first round
    require(learned, f"its {method.reported} models explain {explained:.0%} of the variance, and do not get better")
    return None
