"""The ServerApp: a run of the run-config's settings over the nodes of Flower's grid."""

from __future__ import annotations

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedapp.errors import RunError
from fedapp.federation.queries import Queries

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run federated averaging as the run-config says.

    The nodes are queried before this process imports PyTorch, which each of them does for its answer.

    Raises
    ------
    RunError
        No round changed the model, so that the run fails for Flower, too.
    """
    queries = Queries()
    queries.send_ahead(grid)

    from fedapp.config.read import read_config
    from fedapp.runs.status import without_effect
    from fedapp.server import run

    directory = run(grid, read_config(context.run_config), queries=queries)
    if reason := without_effect(directory):
        raise RunError(f"No round changed the model: {reason}. See: fedapp status {directory.path}")
