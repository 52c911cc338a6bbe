"""A site as Flower's own SuperNode, which starts a process for every message: the path that Flower supports."""

from pathlib import Path

from fedpac.deploy.superlink import end, flower_environment, free_port, program, start


def supernode(
    address: str,
    site: str,
    state: Path,
    data: Path | None,
    simulated: Path | None,
    ca: Path | None,
    key: Path | None,
    ckks: Path | None = None,
) -> int:
    """Run until it ends, and give back its exit code."""
    settings = {"site": site, "state": str(state.absolute())}
    if data is not None:
        settings["data"] = str(data.absolute())
    if simulated is not None:
        settings["simulated"] = str(simulated.absolute())
    if ckks is not None:
        settings["ckks"] = str(ckks.absolute())
    described = " ".join(f'{name}="{value}"' for name, value in settings.items())
    command = [program("flower-supernode"), "--superlink", address, "--node-config", described]
    command += ["--port", str(free_port())]
    if ca is None or key is None:
        command.append("--insecure")
    else:
        command += ["--root-certificates", str(ca.absolute()), "--auth-supernode-private-key", str(key.absolute())]
    state.mkdir(parents=True, exist_ok=True, mode=0o700)
    process = start(command, flower_environment(state.absolute() / "flwr"), state / "supernode.log")
    try:
        return process.wait()
    finally:
        end(process)
