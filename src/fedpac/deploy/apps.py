"""The two ends as Flower apps, for `flwr run`: what a Flower project names as its own, or calls in them."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fedpac.config import Config, make_config
from fedpac.config_values import changed, read_config
from fedpac.deploy.conductor import PATIENCE, Plan, conduct_federation
from fedpac.deploy.desk import Desk, own_data, simulated_data
from fedpac.errors import ConfigError

PLACES = ("config", "out", "data-dir", "patience")  # run config of ours that is not the run's
LISTS = {"federation.sites": str, "federation.shape": int}  # Flower's run config has no lists

server_app = ServerApp()
client_app = ClientApp()


@server_app.main()
def run_rounds(grid: Grid, context: Context) -> None:
    """The server's part, as the run config says.

    `out` is the run's folder, `config` a TOML file, and any key of ours may be given beside it.
    """
    given = context.run_config
    plan = Plan(
        config=stated_config(given),
        out=Path(str(given.get("out") or "federation")),
        patience=float(given.get("patience", PATIENCE)),
        data_dir=Path(str(given["data-dir"])) if given.get("data-dir") else None,
    )
    conduct_federation(grid, plan, _say)


def _say(line: str) -> None:
    sys.stdout.write(f"fedpac: {line}\n")
    sys.stdout.flush()


def stated_config(given: Mapping[str, Any]) -> Config:
    values: dict[str, Any] = read_config(Path(str(given["config"]))) if given.get("config") else {}
    for key, value in given.items():
        if key not in PLACES:
            if key in LISTS:
                value = [LISTS[key](part.strip()) for part in str(value).split(",")]
            values = changed(values, key, value)
    return make_config(values)


@client_app.train()
def answer(message: Message, context: Context) -> Message:
    """A site's part, as its SuperNode's --node-config says."""
    return Message(desk_of(context.node_config).answer(message.content), reply_to=message)


def desk_of(settings: Mapping[str, Any]) -> Desk:
    """The site that a SuperNode's --node-config describes: site="clinic-a" data="..." state="..." ckks="..."."""
    if missing := {"site", "state"} - set(settings):
        raise ConfigError(f"the SuperNode's --node-config lacks {', '.join(sorted(missing))}")
    if "simulated" in settings:
        folder = settings.get("data")
        data = simulated_data(Path(str(settings["simulated"])), Path(str(folder)) if folder else None)
    elif "data" in settings:
        data = own_data(Path(str(settings["data"])))
    else:
        raise ConfigError("the SuperNode's --node-config lacks data: the folder with this site's samples")
    ckks = Path(str(settings["ckks"])) if "ckks" in settings else None
    return Desk(str(settings["site"]), Path(str(settings["state"])), data, ckks=ckks)
