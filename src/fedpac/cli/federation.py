"""fedpac serve, fedpac join and fedpac certs: a federation of real sites."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from fedpac.cli.app import app, out
from fedpac.deploy import FLOWER, flower_fits, require_flower
from fedpac.errors import ConfigError

if TYPE_CHECKING:
    from fedpac.config import Config
    from fedpac.deploy.desk import Data

Insecure = Annotated[bool, typer.Option("--insecure", help="Plain text and no keys. For a trial on one machine only.")]


@app.command(epilog="Example:  fedpac certs certs --host fed.example.org --site clinic-a --site clinic-b --ckks")
def certs(
    folder: Annotated[Path, typer.Argument(help="Where they go; what is there already is kept.", show_default=False)],
    host: Annotated[list[str] | None, typer.Option(help="A name or address of the server. Repeatable.")] = None,
    site: Annotated[list[str] | None, typer.Option(help="A site to make a key pair for. Repeatable.")] = None,
    ckks: Annotated[bool, typer.Option("--ckks", help="Also the secret that sites share to encrypt weights.")] = False,
) -> None:
    """Make a CA, a certificate for the server and a key pair for every site, for a trial."""
    require_flower()
    from fedpac.deploy.certs import make_certificates

    for path in make_certificates(folder, host or [], site or [], ckks):
        out.print(str(path), soft_wrap=True)
    if ckks:
        out.print(
            "sites-only/ckks.key goes to every site and never to the server: make it at a site, remove it here once "
            "all sites have it. Whoever has it can read what any site sends."
        )
    out.print(
        "Give each site ca.crt and its own sites/NAME.key, and nothing else. In production, let your organisation's CA "
        "sign the server's certificate, let each site make its key (ssh-keygen -t ecdsa -b 384) and send only NAME.pub."
    )


@app.command(epilog="Example:  fedpac serve federation.toml --address 0.0.0.0:9443 --certs certs --out runs/clinics")
def serve(
    config: Annotated[Path, typer.Argument(help="The run, with a section [federation].", show_default=False)],
    folder: Annotated[Path, typer.Option("--out", help="The run's folder. If it holds this run, it goes on.")],
    address: Annotated[str, typer.Option(help="Where sites connect: host:port.")] = "127.0.0.1:9443",
    certificates: Annotated[
        Path | None, typer.Option("--certs", help="ca.crt, server.crt, server.key, sites/.")
    ] = None,
    patience: Annotated[float, typer.Option(help="Seconds that sites have to come before the first round.")] = 60.0,
    insecure: Insecure = False,
) -> None:
    """Run a federation's server: wait for the sites, then train. Start it again to go on after an interruption."""
    require_flower()
    from fedpac.config import make_config, read_config
    from fedpac.deploy.certs import refuse_ckks_key
    from fedpac.deploy.conductor import Plan
    from fedpac.deploy.serving import Service

    chosen = make_config(read_config(config))
    if chosen.federation is None:
        raise ConfigError(f"{config} has no section [federation] with sites, classes and shape")
    known = _sites(chosen, folder)
    host, port = _split(address)
    if certificates is None and not insecure:
        raise ConfigError("a server needs certificates and the sites' keys: --certs FOLDER ('fedpac certs' makes one)")
    if certificates is not None and insecure:
        raise ConfigError("--certs and --insecure exclude each other")
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
    epilog="Example:  fedpac join fed.example.org:9443 --data samples --state state --ca ca.crt --key clinic-a.key"
)
def join(
    address: Annotated[str, typer.Argument(help="The server: host:port.", show_default=False)],
    state: Annotated[Path, typer.Option(help="A folder for what this site remembers, and for its results.")],
    data: Annotated[Path | None, typer.Option(help="This site's samples: an .npz file or a folder of images.")] = None,
    ca: Annotated[Path | None, typer.Option(help="The CA that vouches for the server.")] = None,
    key: Annotated[Path | None, typer.Option(help="This site's private key.")] = None,
    ckks: Annotated[
        Path | None, typer.Option(help="The secret that all sites share, where weights are encrypted.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="This site's name. Default: that of the key's file.")] = None,
    keep_on: Annotated[bool, typer.Option("--stay", help="Stay for further runs when one is finished.")] = False,
    newcomer: Annotated[
        bool, typer.Option("--newcomer", help="Take no part: come for a model after the last round.")
    ] = False,
    own_methods: Annotated[
        bool, typer.Option("--own-methods", help="Let the server name a method outside fedpac, installed here.")
    ] = False,
    stock: Annotated[
        bool, typer.Option("--stock", help="As Flower's SuperNode: slower, and it runs the code that the server sends.")
    ] = False,
    simulated: Annotated[Path | None, typer.Option(hidden=True)] = None,
    insecure: Insecure = False,
) -> None:
    """Take part in a federation with the data of this site, which stay here."""
    require_flower()
    from fedpac.deploy.desk import Desk, own_data, simulated_data

    _split(address)
    if (ca is None or key is None) and not insecure:
        raise ConfigError("a site needs the CA's certificate and its own key: --ca ca.crt --key NAME.key")
    if insecure and (ca is not None or key is not None):
        raise ConfigError("--insecure excludes --ca and --key")
    if ckks is not None and simulated is None and not ckks.exists():
        raise ConfigError(f"there is no CKKS key {ckks}: all sites get the same one, which 'fedpac certs --ckks' makes")
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
        raise ConfigError(f"--newcomer needs the persistent site, which needs flwr {FLOWER}, and excludes --stock")
    if stock or not flower_fits():
        from fedpac.deploy.stock import supernode

        if not stock:
            out.print(f"[yellow]The persistent site needs flwr {FLOWER}; this is a stock SuperNode instead.[/]")
        raise typer.Exit(supernode(address, site, state, data, simulated, ca, key, ckks))
    from fedpac.deploy.persistent import Door, stay

    desk = Desk(site, state, held, own_methods, ckks, newcomer)
    for polite in (signal.SIGINT, signal.SIGTERM):
        signal.signal(polite, signal.default_int_handler)
    try:
        stay(Door(address, ca, key), desk, lambda line: out.print(escape(line), soft_wrap=True), once=not keep_on)
    except KeyboardInterrupt:  # the server has been told
        out.print("left; come back with the same command")
        raise typer.Exit(130) from None
    out.print(f"finished; the model, the metrics and a report are in {escape(str(desk.folder))}", soft_wrap=True)


def _split(address: str) -> tuple[str, int]:
    host, colon, port = address.rpartition(":")
    if not (colon and host and port.isdigit() and 0 < int(port) < 65536):
        raise ConfigError(f"'{address}' is no address; expected host:port, such as fed.example.org:9443")
    return host, int(port)
