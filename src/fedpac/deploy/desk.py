"""What a site does with a request, however it came: look after its data, its state and its results."""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from flwr.app import RecordDict

from fedpac.bundles.client_model import client_model
from fedpac.config import Config, make_config
from fedpac.config_values import parse_toml, read_config
from fedpac.data.clients import ClientData, Scenario
from fedpac.data.own import one_client
from fedpac.data.scenario import build
from fedpac.data.validation import hold_out
from fedpac.deploy.records import Records
from fedpac.engines.flower.wire import Answer, Problem, Request, Spec, answer_of, job_of, pack, unpack
from fedpac.engines.site import Job, Outcome, Site, failure_of
from fedpac.engines.store import FolderStore
from fedpac.errors import ConfigError, FedpacError
from fedpac.files import explained, write_atomically
from fedpac.headlines import HEADLINES
from fedpac.message import Message
from fedpac.methods import is_own
from fedpac.methods.base import Which
from fedpac.metrics import METRICS as MEASURES
from fedpac.metrics import headline
from fedpac.runs.execute import task_for
from fedpac.threads import one_thread
from fedpac.training import evaluate

Data: TypeAlias = Callable[[Spec, Config, int], ClientData]


def own_data(path: Path) -> Data:
    """The site's own files."""

    def read(spec: Spec, config: Config, client: int) -> ClientData:
        own = one_client(path, config.run.seed, client, spec.classes, spec.shape)
        return hold_out(own, client, config.validation_share, config.run.seed) if config.validation_share else own

    return read


def simulated_data(config: Path, data_dir: Path | None) -> Data:
    """One client of a scenario, for a trial on one machine."""
    chosen = make_config(read_config(config))
    return lambda spec, _, client: build(chosen.data, chosen.run.seed, data_dir).clients[client]


def folder_of(state: Path, federation: str) -> Path:
    """Where a site keeps what belongs to one federation."""
    return state / federation[:12]


def selected_in(folder: Path) -> Path:
    """Where its state of the round is that validation data chose."""
    return folder / "selected"


class Desk:
    """One site. It answers requests, one at a time, with the data and the state that are here.

    own_methods   whether the server may name a class outside fedpac as the method, which is then imported
    ckks          the key that all sites share, for runs whose weights are encrypted
    newcomer      whether it takes no part, and comes for a model
    say           tells people here what goes wrong
    """

    def __init__(
        self,
        name: str,
        state: Path,
        data: Data,
        own_methods: bool = False,
        ckks: Path | None = None,
        newcomer: bool = False,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.name = name
        self.state = state
        self.data = data
        self.own_methods = own_methods
        self.ckks = ckks
        self.newcomer = newcomer
        self.say = say
        self.trouble = ""  # that was said last
        self.case: Case | None = None
        self.finished = False

    @property
    def folder(self) -> Path:
        """Where the results of the last federation are."""
        return self.case.folder if self.case is not None else self.state

    def answer(self, content: RecordDict) -> RecordDict:
        request, body = unpack(content, Request)
        try:
            with one_thread():
                if self.case is None or self.case.spec != request.spec:
                    self.case = self._open(request.spec)
                return self._reply(self.case, request, body)
        except Exception as error:  # whatever it is, the site stays
            reason = f"site '{self.name}': {error}"
            self._tell(reason)
            return pack(
                Answer(
                    site=self.name, kind=request.kind, client=request.client, round=request.round,
                    problem=Problem(reason=reason[:10_000], kind=type(error).__name__),
                )
            )  # fmt: skip

    def _open(self, spec: Spec) -> "Case":
        if self.name not in spec.names:
            raise ConfigError(f"this federation's sites are {', '.join(spec.names)}; '{self.name}' is not one of them")
        if self.newcomer != (self.name in spec.newcomers):
            what = (
                "is a participant of this federation, not a newcomer" if self.newcomer else "is a newcomer: --newcomer"
            )
            raise ConfigError(f"'{self.name}' {what}")
        client = spec.names.index(self.name)
        values = parse_toml(spec.config, "the server's config")
        asked = make_config(values, import_own=False)
        for what, name in (("method", asked.method["name"]), ("network", asked.model)):
            if is_own(name) and not self.own_methods:
                raise ConfigError(
                    f"the server requests the {what} '{name}', which is not part of fedpac; see --own-methods"
                )
        config = make_config(values)
        if config.privacy.encryption == "none":
            self._refuse_plain_text()
        elif self.ckks is None:
            raise ConfigError("this run is encrypted, but this site has no key: --ckks ckks.key")
        folder = folder_of(self.state, spec.federation)
        return Case(spec, config, client, self.data(spec, config, client), folder, self.ckks)

    def _refuse_plain_text(self) -> None:
        """A server that could talk a site out of encryption would need no key."""
        if self.ckks is not None:
            raise ConfigError(
                "this site has a CKKS key and only sends encrypted weights, but the server asks for plain ones"
            )

    def _reply(self, case: "Case", request: Request, body: bytes) -> RecordDict:
        if request.kind == "hello":
            sizes = len(case.own.train), len(case.own.test)
            return pack(
                Answer(site=self.name, kind="hello", client=-1, round=0, train=sizes[0], test=sizes[1])
            )  # fmt: skip
        if request.client != case.client:
            raise ConfigError(f"this is client {case.client}, not client {request.client}")
        case.follow(request)
        if request.kind == "finish" or request.kind == "welcome":
            case.finish(request, Message.from_bytes(body))
            self.finished = True
            return answer_of(request, self.name, Outcome(case.client))
        job = job_of(request, request.kind, body)
        outcome = case.work(job)
        self._tell(outcome.error.reason if outcome.error is not None else "")
        try:
            return answer_of(request, self.name, outcome)
        except FedpacError as error:  # an answer of what no message can hold
            return answer_of(request, self.name, Outcome(job.client, error=failure_of(job, error)))

    def _tell(self, trouble: str) -> None:
        """Once, however often the server asks."""
        if trouble and trouble != self.trouble:
            self.say(f"failed: {trouble}")
        self.trouble = trouble


class Case:
    """A site's part in one federation, in a folder that only its owner can read."""

    def __init__(
        self, spec: Spec, config: Config, client: int, own: ClientData, folder: Path, ckks: Path | None = None
    ) -> None:
        self.spec = spec
        self.config = config
        self.client = client
        self.own = own
        self.folder = folder
        self.method = config.make_method()
        self.task = task_for(config, spec.classes, spec.sample, len(spec.sites), key=ckks)
        with explained(folder.parent):
            folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.store = FolderStore(folder)
        self.chosen = FolderStore(selected_in(folder)) if config.validation_share else None
        self.records = Records(folder, headline(spec.classes))
        self.site = Site(self.task, self.method, {client: own}, self.store)

    def follow(self, request: Request) -> None:
        """Forget what never counted, and keep the state of the round that validation data chose, while it is here."""
        stores = [store for store in (self.store, self.chosen) if store is not None]
        if request.since is not None:
            for store in stores:
                store.rewind(self.client, request.since)
        selected, takes_part = request.selected, self.client < len(self.spec.sites)
        if self.chosen is None or selected is None or not takes_part or selected in self.chosen.rounds(self.client):
            return
        self.chosen.save(self.client, selected, self.store.before(self.client, selected + 1))

    def work(self, job: Job) -> Outcome:
        first = self.work(job.first) if job.first is not None else None
        outcome = self.site.work(job)
        if outcome.score is not None:
            split = "received" if job.kind == "receive" else "personal"
            self.records.note(job.round, split, outcome.score, outcome.measured)
        return replace(outcome, first=first)

    def finish(self, request: Request, down: Message) -> None:
        """Keep the model that this client ends up with, and a report."""
        new, round = request.kind == "welcome", request.selected or request.round
        which: Which = "received" if new else self.method.reported
        site = Site(self.task, self.method, {self.client: self.own}, self.chosen) if request.selected else self.site
        module = site.model_of(self.client, "new" if new else which, round + 1, down)
        if new and len(self.own.test):
            x, y = self.own.test.tensors()
            self.records.note(round, "received", evaluate(module, self.task.cast(x), y), {})
        here = Scenario([self.own], self.spec.classes, self.spec.shape, "federation")
        model = client_model(module, 0, which, self.method, self.task, here, self.config.model)
        judged = HEADLINES[headline(self.spec.classes)]
        path = self.folder / "model"
        try:
            shutil.rmtree(path, ignore_errors=True)  # of an earlier end
            model.save(path, onnx=False)
            for file in (path, *path.iterdir()):
                file.chmod(0o700 if file.is_dir() else 0o600)
            loading = LOADING
        except FedpacError as error:
            loading = f"There is no model: {error}.\n"
        self.records.end(request.round)
        known = self.records.known_in(round)
        table = "".join(f"| {split} | {judged.show(a)} | {loss:.4f} |\n" for split, (a, loss) in known.items())
        report = REPORT.format(
            site=self.spec.names[self.client], method=self.method.title, sites=len(self.spec.sites),
            rounds=request.round, train=len(self.own.train), test=len(self.own.test), which=which, round=round,
            how=", which validation data chose" if request.selected else "", table=table, loading=loading,
            judged=judged.label, measured=_listed(model.metrics()),
        )  # fmt: skip
        with explained(self.folder):
            write_atomically(self.folder / "report.md", report.encode(), mode=0o600)


def _listed(measured: Mapping[str, Any]) -> str:
    """What was measured of the model that is kept, beside what the table has."""
    more = {name: value for name, value in measured.items() if name in MEASURES and name not in ("accuracy", "loss")}
    if not more:
        return ""
    return "On the test samples here: " + ", ".join(f"{name} {value:.4f}" for name, value in more.items()) + ".\n\n"


REPORT = """# {site}

{method}, {rounds} rounds with {sites} sites. Here: {train} samples to train and {test} to test on.

| model after round {round}{how} | test {judged} | test loss |
|---|---|---|
{table}
`metrics.csv` has every evaluated round, and `scores.csv` what else was measured, if anything. The method's paper
reports the {which} model.

{measured}{loading}"""

LOADING = """`model` is that model, in a folder that needs none of the training data: `fedpac predict model x.npz`, or

```python
import fedpac

fedpac.load_model("model").predict(x)
```
"""
