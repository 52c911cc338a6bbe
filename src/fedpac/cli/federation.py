"""fedpac serve, fedpac join and fedpac certs: a federation of real sites."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from fedpac.cli.app import SITES, app, examples, out
from fedpac.deploy import FLOWER, flower_fits, require_flower
from fedpac.errors import ConfigError

if TYPE_CHECKING:
    from fedpac.config import Config
    from fedpac.deploy.desk import Data

Insecure = Annotated[
    bool, typer.Option("--insecure", help="No encryption and no keys. Only for trials on one machine.")
]


@app.command(
    rich_help_panel=SITES,
    epilog=examples(
        "fedpac certs certs --host fed.example.org --site clinic-a --site clinic-b --ckks",
    ),
)
def certs(
    folder: Annotated[Path, typer.Argument(help="Output folder; existing files are kept.", show_default=False)],
    host: Annotated[list[str] | None, typer.Option(help="Host name or address of the server. Repeatable.")] = None,
    site: Annotated[list[str] | None, typer.Option(help="A site to create a key pair for. Repeatable.")] = None,
    ckks: Annotated[
        bool, typer.Option("--ckks", help="Also create the secret key that sites share to encrypt weights.")
    ] = False,
) -> None:
    """Create a CA, a server certificate and a key pair for every site, for a trial."""
    require_flower()
    from fedpac.deploy.certs import make_certificates

    for path in make_certificates(folder, host or [], site or [], ckks):
        out.print(str(path), soft_wrap=True)
    if ckks:
        out.print(
            "Give sites-only/ckks.key to every site and never to the server: create it at a site, and remove it here "
            "once all sites have it. Anyone who has it can read what any site sends."
        )
    out.print(
        "Give each site ca.crt and its own sites/NAME.key, and nothing else. In production, have your organisation's "
        "CA sign the server certificate, and have each site create its own key (ssh-keygen -t ecdsa -b 384) and send "
        "only NAME.pub."
    )


@app.command(
    rich_help_panel=SITES,
    epilog=examples(
        "fedpac serve federation.toml --address 0.0.0.0:9443 --certs certs --out runs/clinics",
    ),
)
def serve(
    config: Annotated[
        Path, typer.Argument(help="The config of the run, with its federation section.", show_default=False)
    ],
    folder: Annotated[Path, typer.Option("--out", help="The run's folder. An existing run is resumed.")],
    address: Annotated[str, typer.Option(help="Address that sites connect to: host:port.")] = "127.0.0.1:9443",
    certificates: Annotated[
        Path | None, typer.Option("--certs", help="Folder with ca.crt, server.crt, server.key and sites/.")
    ] = None,
    patience: Annotated[float, typer.Option(help="Seconds to wait for sites before the first round.")] = 60.0,
    insecure: Insecure = False,
) -> None:
    """Run the server of a federation: wait for the sites, then train. Restart it to resume after an interruption."""
    require_flower()
    from fedpac.config import make_config
    from fedpac.config_values import read_config
    from fedpac.deploy.certs import refuse_ckks_key
    from fedpac.deploy.conductor import Plan
    from fedpac.deploy.serving import Service

    chosen = make_config(read_config(config))
    if chosen.federation is None:
        raise ConfigError(f"{config} has no [federation] section with sites, classes and shape")
    known = _sites(chosen, folder)
    host, port = _split(address)
    if certificates is None and not insecure:
        raise ConfigError("a server needs certificates and the sites' keys: --certs FOLDER (created by 'fedpac certs')")
    if certificates is not None and insecure:
        raise ConfigError("--certs and --insecure cannot be combined")
    if certificates is not None:
        refuse_ckks_key(certificates)
    out.print(f"{len(known)} sites may join at {escape(address)}; results go to {escape(str(folder))}")
    service = Service(folder.parent / f".{folder.name}-server", host, port, certificates, known)
    with service:
        service.carry_out(Plan(chosen, folder, patience=patience), lambda line: out.print(escape(line), soft_wrap=True))
    out.print(f"finished; the run is in {escape(str(folder))}", soft_wrap=True)


def _sites(chosen: Config, folder: Path) -> list[str]:
    """Whose keys are let in: the sites of the run, which may have changed since it began, and newcomers."""
    from fedpac.runs.folder import RunStore

    store = RunStore(folder)
    federation = (store.config(chosen.method["name"]) if store.begun else chosen).federation
    assert federation is not None
    assert chosen.federation is not None
    staying = [site for site in federation.sites if site not in (federation.left or ())]
    return staying + list(chosen.federation.newcomers or ())


@app.command(
    rich_help_panel=SITES,
    epilog=examples(
        "fedpac join fed.example.org:9443 --data samples --state state --ca ca.crt --key clinic-a.key",
    ),
)
def join(
    address: Annotated[str, typer.Argument(help="The server: host:port.", show_default=False)],
    state: Annotated[Path, typer.Option(help="Folder for this site's state and results.")],
    data: Annotated[Path | None, typer.Option(help="This site's data: an .npz file or a folder of images.")] = None,
    ca: Annotated[Path | None, typer.Option(help="The CA certificate that signed the server's.")] = None,
    key: Annotated[Path | None, typer.Option(help="This site's private key.")] = None,
    ckks: Annotated[
        Path | None, typer.Option(help="The secret key shared by all sites, if weights are encrypted.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="This site's name. Default: the name of the key file.")] = None,
    keep_on: Annotated[bool, typer.Option("--stay", help="Keep running and wait for further runs.")] = False,
    newcomer: Annotated[
        bool, typer.Option("--newcomer", help="Do not train: only receive a model after the last round.")
    ] = False,
    own_methods: Annotated[
        bool, typer.Option("--own-methods", help="Allow methods outside fedpac that are installed on this site.")
    ] = False,
    stock: Annotated[
        bool, typer.Option("--stock", help="Use Flower's own SuperNode: slower, and it runs code sent by the server.")
    ] = False,
    simulated: Annotated[Path | None, typer.Option(hidden=True)] = None,
    insecure: Insecure = False,
) -> None:
    """Join a federation with this site's data, which never leave this machine."""
    require_flower()
    from fedpac.deploy.desk import Desk, own_data, simulated_data

    _split(address)
    if (ca is None or key is None) and not insecure:
        raise ConfigError("a site needs the CA's certificate and its own key: --ca ca.crt --key NAME.key")
    if insecure and (ca is not None or key is not None):
        raise ConfigError("--insecure cannot be combined with --ca and --key")
    if ckks is not None and simulated is None and not ckks.exists():
        raise ConfigError(f"there is no CKKS key {ckks}: all sites need the same one, created by 'fedpac certs --ckks'")
    site = name or (key.stem if key is not None else None)
    if site is None:
        raise ConfigError("without a key, a site needs --name")
    held: Data
    if simulated is not None:
        held = simulated_data(simulated, data)
    elif data is not None:
        held = own_data(data)
    else:
        raise ConfigError("a site needs data: --data FOLDER")
    if newcomer and (stock or not flower_fits()):
        raise ConfigError(
            f"--newcomer needs the persistent site, which needs flwr {FLOWER} and cannot be combined with --stock"
        )
    if stock or not flower_fits():
        from fedpac.deploy.stock import supernode

        if not stock:
            out.print(f"[yellow]The persistent site needs flwr {FLOWER}; falling back to a stock SuperNode.[/]")
        raise typer.Exit(supernode(address, site, state, data, simulated, ca, key, ckks))
    from fedpac.deploy.persistent import Door, stay

    def say(line: str) -> None:
        out.print(escape(line), soft_wrap=True)

    desk = Desk(site, state, held, own_methods, ckks, newcomer, say)
    for polite in (signal.SIGINT, signal.SIGTERM):
        signal.signal(polite, signal.default_int_handler)
    try:
        stay(Door(address, ca, key), desk, say, once=not keep_on)
    except KeyboardInterrupt:  # the server has been told
        out.print("left; rejoin with the same command")
        raise typer.Exit(130) from None
    out.print(f"finished; the model, the metrics and a report are in {escape(str(desk.folder))}", soft_wrap=True)


def _split(address: str) -> tuple[str, int]:
    host, colon, port = address.rpartition(":")
    if not (colon and host and port.isdigit() and 0 < int(port) < 65536):
        raise ConfigError(f"'{address}' is not an address; expected host:port, such as fed.example.org:9443")
    return host, int(port)
