import pytest
from small_table import experiment

from fedpac.runs.reproduce import cells, fill


@pytest.fixture(scope="package")
def filled(tmp_path_factory):
    """(experiment, folder of its runs), everything run in one go."""
    folder = tmp_path_factory.mktemp("filled")
    small = experiment(folder)
    done = list(fill(cells(small, folder / "results")))
    assert len(done) == 6  # three runs in each of two settings: the by-product has none of its own
    return small, folder / "results"
