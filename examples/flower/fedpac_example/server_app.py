"""The server: every method of fedpac, as the run config says."""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedpac.deploy.apps import run_rounds

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    run_rounds(grid, context)
