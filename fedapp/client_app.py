"""The ClientApp: messages to a node. PyTorch is imported with the first one, not with the app.

Flower's simulation loads the app before it starts Ray, so that Ray does not wait for PyTorch.
"""

from __future__ import annotations

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable

from fedapp.machine import sigterm_interrupts


def ends_at_sigterm(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Let SIGTERM end the process as SIGKILL does: the SuperNode then replies that it crashed.

    Flower's own handler reports a failed task without a reply, for which its SuperNode waits for ever.
    """
    with sigterm_interrupts():
        return call_next(message, context)


app = ClientApp(mods=[ends_at_sigterm])


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the clients of the request and reply with their mean update."""
    from fedapp import node

    return node.train(message, context)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Evaluate the clients of the request, or batches of the server's examples."""
    from fedapp import node

    return node.evaluate(message, context)


@app.query()
def query(message: Message, context: Context) -> Message:
    """Describe this node's data, device and software."""
    from fedapp import node

    return node.query(message, context)
