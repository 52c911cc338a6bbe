"""Who is refused at the door that sites come through: real TLS, real keys, a real SuperLink behind it."""

import asyncio
import socket
import stat
from base64 import b64encode
from datetime import timedelta

import httpx
import pytest
from flwr.app import Message, RecordDict
from flwr.common.serde import message_to_proto
from flwr.proto.control_pb2 import RegisterNodeRequest, StartRunRequest
from flwr.proto.fleet_pb2 import PullMessagesRequest, PullMessagesResponse, PushMessagesRequest
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.proto.message_pb2 import PullObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.date import now
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode import node_auth_http_interceptor
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from fedpac.deploy import gate as gate_module
from fedpac.deploy.certs import make_certificates, read_private_key
from fedpac.deploy.desk import Desk, own_data
from fedpac.deploy.persistent import Door, stay
from fedpac.errors import RunError

pytestmark = pytest.mark.xdist_group("federation")


@pytest.fixture
def come(federation, tmp_path):
    """A site that comes to the door; nothing but an error gets it away."""

    def come(ca=None, key=None):
        make_certificates(tmp_path / "other", ["localhost"], ["stranger"])
        door = Door(federation.address, ca and ca / "ca.crt", key)
        stay(door, Desk("site", tmp_path / "state", own_data(tmp_path)), lambda line: None, patience=1.0)

    return come


def key_of(federation, site):
    return federation.certificates / "sites" / f"{site}.key"


def test_an_unregistered_key_is_refused(federation, come, tmp_path):
    with pytest.raises(RunError, match="refuses this site: no key of a site"):
        come(federation.certificates, tmp_path / "other" / "sites" / "stranger.key")


def test_a_second_node_with_the_same_key_is_refused(federation, come):
    until_here(federation)
    with pytest.raises(RunError, match="no other process may be using it"):
        come(federation.certificates, key_of(federation, "client-0"))


def test_a_server_that_another_ca_vouches_for_is_not_trusted(federation, come, tmp_path):
    with pytest.raises(RunError, match="is not signed by"):
        come(tmp_path / "other", key_of(federation, "client-0"))


def test_plain_text_is_refused(federation, come):
    with pytest.raises(RunError, match="does not support plain text"):
        come()
    with socket.create_connection(federation.address.split(":"), timeout=30) as wire:
        wire.sendall(b"POST /v1/fleet/pull-messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n")
        assert b"200" not in wire.recv(100)


def test_a_key_that_others_can_read_is_refused(fedpac, federation, tmp_path):
    make_certificates(tmp_path / "other", ["localhost"], ["stranger"])
    key = tmp_path / "other" / "sites" / "stranger.key"
    key.chmod(0o644)
    code, _, err = fedpac(
        "join", federation.address, "--state", "s", "--data", ".", "--ca", tmp_path / "other" / "ca.crt", "--key", key
    )
    assert code == 1
    assert "others can read the key" in err


def ca_of(federation):
    return (federation.certificates / "ca.crt").read_bytes()


@pytest.fixture
def fleet(federation):
    """Flower's own client, with the key of a site or with none."""
    made = []

    def client(site=None):
        signed = [] if site is None else [NodeAuthHttpInterceptor(*read_private_key(key_of(federation, site)))]
        made.append(FleetHttpClient.from_server_address(federation.address, False, ca_of(federation), signed))
        return made[-1]

    yield client
    for one in made:
        one._client.close()


def until_here(federation):
    federation.until_online(4)


def refused(call, request):
    with pytest.raises(httpx.HTTPStatusError) as error:
        call(request)
    return error.value.response.status_code


def test_no_key_is_refused(fleet):
    assert refused(fleet().PullMessages, PullMessagesRequest(node=Node(node_id=1))) == 401


def test_control_calls_from_a_site_are_refused(federation, fleet):
    signed = [NodeAuthHttpInterceptor(*read_private_key(key_of(federation, "client-0")))]
    control = ControlHttpClient.from_server_address(federation.address, False, ca_of(federation), signed)
    assert refused(control.RegisterNode, RegisterNodeRequest(public_key=b"mine")) == 403
    assert refused(control.StartRun, StartRunRequest()) == 403
    control.close()
    with httpx.Client(verify=fleet()._client._transport._pool._ssl_context, timeout=30) as site:
        for path in ("v1/runtime/push-messages", "v1/fleet/register-node", "v1/fleet/../control/start-run", "docs", ""):
            assert site.post(f"https://{federation.address}/{path}", content=b"").status_code == 403
        assert site.get(f"https://{federation.address}/openapi.json").status_code == 403


def pushed(node, sender, reply_to):
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
    message = Message(RecordDict(), dst_node_id=1, message_type="train")
    message.metadata.__dict__.update(_message_id="m", _src_node_id=sender, _reply_to_message_id=reply_to)
    return PushMessagesRequest(node=Node(node_id=node), messages_list=[message_to_proto(message)])


def test_a_site_cannot_speak_for_another_one(federation, fleet):
    until_here(federation)
    ours, theirs = (federation.node_of(site) for site in ("client-0", "client-1"))
    site = fleet("client-0")
    assert refused(site.PullMessages, PullMessagesRequest(node=Node(node_id=theirs))) == 401
    assert refused(site.PushMessages, pushed(theirs, theirs, "m")) == 401
    assert refused(site.PushMessages, pushed(ours, theirs, "m")) == 403  # Flower's SuperLink takes this one
    assert refused(site.PushMessages, pushed(ours, 1, "")) == 403  # and this: an instruction, as if from the server


def test_what_was_signed_long_ago_is_refused(federation, fleet, monkeypatch):
    """So a request that somebody has kept cannot be sent again."""
    until_here(federation)
    node = Node(node_id=federation.node_of("client-0"))
    long_ago = now() - timedelta(minutes=6)
    monkeypatch.setattr(node_auth_http_interceptor, "now", lambda: long_ago)
    assert refused(fleet("client-0").PullMessages, PullMessagesRequest(node=node)) == 401


def test_bytes_that_mean_nothing_are_refused(federation, fleet):
    class Garbage:
        def SerializeToString(self, **how):  # noqa: N802  (Flower's name)
            return b"\xff\xfe garbage"

    site = fleet("client-0")
    for call in (site.PushMessages, site.PushObject, site.PullObject, site.ActivateNode):
        assert 400 <= refused(call, Garbage()) < 500


class Upstream:
    """A SuperLink that takes everything, and has a message of so many bytes."""

    def __init__(self, size):
        self.size, self.took, self.fresh = size, 0, True

    def __call__(self, request):
        if request.url.path.endswith("pull-messages"):
            self.fresh, fresh = False, self.fresh
            return httpx.Response(
                200, content=PullMessagesResponse(messages_list=[ProtoMessage()] * fresh).SerializeToString()
            )
        if request.url.path.endswith("push-object"):
            self.took += len(request.content)
            return httpx.Response(200)
        return httpx.Response(200, content=bytes(self.size))


async def calls(gate, *requests):
    """The statuses that a site gets for (call, bytes)."""
    statuses = []

    async def send(event):
        statuses.extend([event["status"]] if "status" in event else [])

    for call, body in requests:

        async def receive(body=body):
            return {"type": "http.request", "body": body}

        scope = {
            "type": "http",
            "method": "POST",
            "path": f"/v1/fleet/{call}",
            "headers": [(gate_module.KEY, b64encode(b"site"))],
        }
        await gate(scope, receive, send)
    return statuses


@pytest.mark.parametrize("again", [1, 100])
@pytest.mark.parametrize(("model", "taken"), [(0, 64), (50, 64 + 32 * 50)])
def test_an_answer_of_2_gb_is_not_taken(model, taken, again):
    """Megabytes: a model of 50 is answered in parts; whoever fetches it many times may not send more."""
    gate, upstream = gate_module.Filter("http://superlink", None, [b"site"]), Upstream(model * 2**20)
    gate.client = httpx.AsyncClient(base_url="http://superlink", transport=httpx.MockTransport(upstream))
    part = ("push-object", bytes(4 * 2**20))
    fetch = ("pull-object", PullObjectRequest(object_id="the model").SerializeToString())
    statuses = asyncio.run(calls(gate, ("pull-messages", b""), *[fetch] * (again if model else 0), *[part] * 512))
    assert statuses.count(413) == 512 - taken // 4
    assert upstream.took == taken * 2**20
    statuses = asyncio.run(calls(gate, ("pull-messages", b""), part))
    assert statuses[-1] == 413, "there was no other message"
    upstream.fresh = True
    assert asyncio.run(calls(gate, ("pull-messages", b""), part))[-1] == 200, "the next one may be answered"
    assert asyncio.run(calls(gate, ("push-object", bytes(17 * 2**20)))) == [413], "no single request is that large"


def test_keys_and_certificates_are_the_owners_only(tmp_path):
    make_certificates(tmp_path / "certs", ["fed.example.org", "10.0.0.1"], ["a"])
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "certs").rglob("*")}
    assert modes == {
        "ca.key": 0o600, "server.key": 0o600, "a.key": 0o600, "ca.crt": 0o644, "server.crt": 0o644, "a.pub": 0o644,
        "sites": 0o700,
    }  # fmt: skip
    assert stat.S_IMODE((tmp_path / "certs").stat().st_mode) == 0o700


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (("serve", "federation.toml", "--out", "run"), "a server needs certificates"),
        (("join", "localhost:1", "--state", "s", "--data", "."), "a site needs the CA's certificate and its own key"),
        (("join", "localhost:1", "--state", "s", "--data", ".", "--ca", "c"), "a site needs the CA's certificate"),
        (("join", "localhost:1", "--state", "s", "--data", ".", "--insecure"), "without a key, a site needs --name"),
        (("join", "localhost", "--state", "s", "--data", "."), "'localhost' is not an address"),
    ],
)
def test_nothing_starts_without_tls_and_keys(fedpac, tmp_path, command, says):
    (tmp_path / "federation.toml").write_text("federation = {sites = ['a'], classes = 2, shape = [1, 8, 8]}\n")
    code, _, err = fedpac(*command)
    assert code == 1
    assert says in err
    assert {path.name for path in tmp_path.iterdir()} == {"federation.toml"}
