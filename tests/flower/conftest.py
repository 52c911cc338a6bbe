"""One federation of real processes for all tests that only need it to be there."""

from contextlib import ExitStack

import pytest
from processes import Federation

from small_run import small


@pytest.fixture(scope="package")
def federation(tmp_path_factory):
    """TLS, keys, and four sites that stay; tests that use it are in the xdist group 'federation', so there is one."""
    made = Federation(tmp_path_factory.mktemp("federation"))
    config = made.folder / "data.toml"
    config.write_text(small().to_toml())
    with made.service, ExitStack() as sites:
        for client in range(4):
            sites.enter_context(made.join(client, config, "--stay"))
        yield made
