"""The page for writing a method knows what the code has."""

import inspect
import re
from pathlib import Path

import pytest

from fedpac.client import Client
from fedpac.methods import Method
from fedpac.testing import METHOD_CHECKS
from fedpac.testing.tiny import tiny_data, tiny_task, visit
from fedpac.training import train

PAGE = (Path(__file__).parent.parent.parent / "docs" / "own-method.md").read_text()
FUNCTIONS = [name for name, item in vars(Method).items() if inspect.isfunction(item) and not name.startswith("_")]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_has_its_signature(name):
    written = re.search(rf"`{name}\((self.*?)\) -> .+?`", PAGE)
    assert written, f"{name} is not in docs/own-method.md"
    parameters = [part.partition(":")[0].strip() for part in re.sub(r"\[.*?\]", "", written[1]).split(",")]
    assert parameters == list(inspect.signature(getattr(Method, name)).parameters)


def test_every_argument_of_train_is_explained():
    arguments = [name for name, p in inspect.signature(train).parameters.items() if p.kind is p.KEYWORD_ONLY]
    assert arguments
    assert [name for name in arguments if f"`{name}`" not in PAGE] == []


def test_what_a_client_offers_is_there():
    client = visit(tiny_task(4), tiny_data(), 0)
    named = set(re.findall(r"`client\.(\w+)", PAGE))
    assert {name for name in named if not hasattr(client, name)} == set()
    offered = {name for name in {**vars(client), **vars(Client)} if not name.startswith("_")}
    assert offered - named <= {"data", "task"}  # which a method has no need of


def test_the_number_of_checks():
    assert f"{len(METHOD_CHECKS)} checks" in PAGE
