"""Odd models under every method: each is trained as its plain twin is, or refused by name before the first round."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fedpac
from fedpac.data.clients import Scenario
from fedpac.errors import ConfigError
from fedpac.methods import list_methods, make_method
from fedpac.models import Classifier, copy_with, trainable
from fedpac.training import train
from helpers import CLASSES, INPUTS, RECIPE, assert_close, batches_of, run_federation, tiny_data, tiny_task, visit
from odd_models import ODD, TOKENS, UNUSABLE, Between, body, drawn, head, token_data

odd_models = pytest.mark.parametrize("kind", ODD)
CASES = [*((name, {}) for name in list_methods()), ("scaffold", {"server_lr": 0.5}), ("pfedme", {"beta": 0.5})]


def numbers(result):
    return [[(s.client, s.which, s.loss) for s in report.scores] for report in result.reports]


@odd_models
@pytest.mark.parametrize(("name", "settings"), CASES, ids=[" ".join([name, *more]) for name, more in CASES])
def test_every_method_trains_it_as_it_trains_its_twin(name, settings, kind):
    odd, method = ODD[kind], make_method(name, settings)
    found = numbers(run_federation(method, model=drawn(odd.make), data=odd.data()))
    expected = numbers(run_federation(method, model=drawn(odd.twin), data=odd.twin_data()))
    for mine, other in zip(found, expected, strict=True):
        assert [score[:2] for score in mine] == [score[:2] for score in other]
        assert [score[2] for score in mine] == pytest.approx([score[2] for score in other], rel=1e-4)


@odd_models
def test_training_is_what_torch_does(kind):
    """torch.optim.SGD on the module itself, as its user would train it."""
    odd = ODD[kind]
    data = odd.data()
    task = tiny_task(len(data), model=drawn(odd.make))
    client = visit(task, data, 1)
    module = copy_with(task.model, task.initial).train()
    optimizer = torch.optim.SGD(module.parameters(), RECIPE["lr"], RECIPE["momentum"], weight_decay=0.01)
    x, y = data[1].train.tensors()
    x = x.to(next(module.parameters()).dtype) if x.is_floating_point() else x
    for index in batches_of(client):
        optimizer.zero_grad()
        F.cross_entropy(module(x[index]), y[index]).backward()
        optimizer.step()
    trained = train(client, task.initial)
    wanted = module.state_dict()
    assert_close(trained, {name: wanted[name] for name in trained})
    assert all(torch.equal(trained[n], p) for n, p in task.model.named_parameters() if not p.requires_grad)
    assert all(not torch.equal(trained[n], p) for n, p in trainable(task.model))


@odd_models
def test_fit_takes_it_and_its_models_predict(kind):
    odd = ODD[kind]
    scenario = Scenario(list(odd.data()), CLASSES, tuple(odd.data()[0].train.pool.x.shape[1:]), "odd")
    result = fedpac.fit(drawn(odd.make), scenario, "fedpac", rounds=2, epochs=1, engine="serial")
    for i, own in enumerate(scenario.clients):
        x, y = own.test.tensors()
        model = result.models[i]
        scores = model.module(result.task.cast(x))
        assert torch.equal(torch.as_tensor(model.predict(x)), scores.argmax(1))
        assert result.accuracy[i] == pytest.approx(float((scores.argmax(1) == y).double().mean()))


def test_what_is_saved_of_tied_weights_loads_into_the_users_own_module(tmp_path):
    from safetensors.torch import load_file

    odd = ODD["tied in the body"]
    scenario = Scenario(list(odd.data()), CLASSES, (INPUTS,), "odd")
    model = fedpac.fit(drawn(odd.make), scenario, "fedavg", rounds=1, engine="serial").models[0]
    module = odd.make()
    module.load_state_dict(load_file(model.save(tmp_path / "model.safetensors")))
    x = scenario.clients[0].test.tensors()[0]
    assert torch.equal(module(x), model.module(x))


@pytest.mark.parametrize("method", ["fedavg", "fedpac"])
@pytest.mark.parametrize(("make", "message"), UNUSABLE.values(), ids=UNUSABLE)
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning")
def test_what_cannot_be_used_is_refused(make, message, method):
    scenario = Scenario(tiny_data(), CLASSES, (INPUTS,), "tiny")
    with pytest.raises(ConfigError, match=message):
        fedpac.fit(make(), scenario, method, rounds=1, engine="serial")


def test_a_token_that_the_model_does_not_know_is_told_before_the_first_round():
    """Wherever it is: here it is one of the last client's test data."""
    data = token_data()
    data[0].train.pool.x[-1, 0] = TOKENS
    scenario = Scenario(data, CLASSES, (5,), "tokens")
    with pytest.raises(ConfigError, match=r"does not accept samples of shape \(5,\) and type torch.int64: IndexError"):
        fedpac.fit(drawn(ODD["tokens"].make), scenario, rounds=1, engine="serial")


def test_a_sample_of_zeros_shows_as_much():
    """A server that holds no data has no other: tanh(0) is 0, and so is minus that."""
    model = Between(nn.Flatten(), nn.Linear(INPUTS, CLASSES))
    with pytest.raises(ConfigError, match=r"does not give head\(body\(x\)\)"):
        tiny_task(1, model=model, sample=torch.zeros(INPUTS))


def test_looking_at_a_model_changes_neither_it_nor_the_random_numbers():
    model = Classifier(nn.Sequential(*body(), nn.BatchNorm1d(5), nn.Dropout(0.5)), head())
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state = torch.get_rng_state()
    task = tiny_task(1, model=model, sample=torch.zeros(INPUTS))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(before[name], tensor) for name, tensor in task.model.state_dict().items())
    assert all(p.grad is None for p in task.model.parameters())


@pytest.mark.parametrize("name", ["fedem", "hypcluster"])
def test_other_initialisations_leave_what_came_trained_as_it_is(name):
    finished = run_federation(make_method(name), rounds=1, model=drawn(ODD["a frozen layer"].make))
    given = finished.task.initial["body.0.weight"]
    parts = [finished.server.weights(f"w{m}") for m in range(3)]
    assert all(torch.allclose(part["body.0.weight"], given, rtol=1e-6) for part in parts)
    assert not torch.allclose(parts[1]["body.2.weight"], parts[2]["body.2.weight"])
    assert all(math.isfinite(s.loss) for s in finished.reports[-1].scores)
