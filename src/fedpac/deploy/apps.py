"""The two ends as Flower apps, for `flwr run`: what a Flower project names as its serverapp and clientapp."""

from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fedpac.deploy.conductor import conduct_federation
from fedpac.deploy.desk import Desk, own_data, simulated_data
from fedpac.errors import ConfigError

server_app = ServerApp()
client_app = ClientApp()


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    conduct_federation(grid, context.run_config)


@client_app.train()
def train(message: Message, context: Context) -> Message:
    return Message(desk_of(context.node_config).answer(message.content), reply_to=message)


def desk_of(settings: Any) -> Desk:
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
