"""The names that `import fedpac` offers: there, quick, and the same whatever else has been imported."""

import pkgutil
import re
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

import fedpac

ROOT = Path(__file__).parent.parent
PAGES = ["README.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("name", fedpac.__all__)
def test_every_name_is_there(name):
    assert getattr(fedpac, name) is not None


def test_every_name_is_announced():
    assert {*fedpac._HOME, "__version__"} == set(fedpac.__all__) == set(dir(fedpac))


def test_no_name_is_that_of_a_submodule():
    """It would be a function before the submodule is imported, and a module after."""
    assert {module.name for module in pkgutil.iter_modules(fedpac.__path__)} & set(fedpac.__all__) == set()


def test_names_mean_the_same_after_everything_was_touched():
    code = (
        "import fedpac\n"
        "before = {name: getattr(fedpac, name) for name in ('list_methods', 'find_method', 'FedAvg')}\n"
        "[getattr(fedpac, name) for name in fedpac.__all__]\n"
        "assert all(getattr(fedpac, name) is value for name, value in before.items())\n"
        "assert fedpac.find_method('fedavg') is fedpac.FedAvg is fedpac.list_methods()['fedavg']\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("page", PAGES)
def test_names_in_the_documents_exist(page):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    used = {name for block in blocks for name in re.findall(r"\bfedpac\.(\w+)", block)}
    used |= set(re.findall(r"`fedpac\.(\w+)", (ROOT / page).read_text()))
    submodules = {module.name for module in pkgutil.iter_modules(fedpac.__path__)}
    assert used - set(fedpac.__all__) - submodules == set()


def test_the_version_is_said_in_one_place():
    assert fedpac.__version__ == version("fedpac")
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dynamic"] == ["version"]


def test_a_name_that_is_not_there():
    with pytest.raises(AttributeError, match="no attribute 'fitt'"):
        _ = fedpac.fitt
