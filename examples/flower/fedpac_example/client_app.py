"""A site: it trains on its own data, and keeps its state in a folder of its own."""

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedpac.deploy.apps import answer

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    return answer(message, context)
