"""The persistent site is pinned to the Flower it was tested with; beside another one, a site is a stock SuperNode."""

from fedpac.deploy import FLOWER, flower_fits


def test_the_installed_flower_is_the_one_that_was_tested():
    assert flower_fits()


def test_another_flower_gets_a_stock_site(fedpac, tmp_path, monkeypatch):
    started = []
    monkeypatch.setattr("fedpac.cli.federation.flower_fits", lambda: False)
    monkeypatch.setattr("fedpac.deploy.stock.supernode", lambda *arguments: started.append(arguments) or 0)
    here = ("join", "localhost:1", "--state", tmp_path / "s", "--data", tmp_path, "--name", "a", "--insecure")
    code, said, _ = fedpac(*here)
    assert code == 0
    assert f"The persistent site needs flwr {FLOWER}; falling back to a stock SuperNode." in said
    assert [(address, name) for address, name, *_ in started] == [("localhost:1", "a")]
    code, _, err = fedpac(*here, "--newcomer")
    assert code == 1
    assert f"needs flwr {FLOWER}" in err
    assert len(started) == 1
