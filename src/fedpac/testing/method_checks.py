"""What every method owes to every engine, to a stopped run and to its clients' privacy, as checks by name."""

from collections.abc import Iterator
from functools import partial
from typing import Any

from fedpac.engines import ProcessEngine
from fedpac.methods import Method
from fedpac.testing.engines import Apart, Moving, Reversed, Shuffled
from fedpac.testing.exchange import (
    condensed_replies,
    fitting_replies,
    messages_hold_no_samples,
    messages_survive_bytes,
    sums_suffice,
)
from fedpac.testing.learning import (
    another_recipe,
    batch_norm_and_dropout,
    one_sample_each,
    plain_run,
    predicts_numbers,
    training_helps,
    trains_a_model,
    welcomes_newcomers,
)
from fedpac.testing.same_numbers import (
    looking_changes_nothing,
    nothing_is_changed_in_place,
    same_on,
    settings_hold,
    stops_and_goes_on,
    stores_nothing,
)
from fedpac.testing.trial import Trial
from fedpac.testing.verdicts import Check, Verdict, judged


def check_method(cls: type[Method], settings: dict[str, Any] | None = None) -> list[Verdict]:
    """Everything that a method of yours owes, one verdict each: `all(v.passed for v in check_method(MyMethod))`."""
    return list(examine(cls, settings))


def examine(cls: type[Method], settings: dict[str, Any] | None = None) -> Iterator[Verdict]:
    """The verdicts of check_method, as they come."""
    return judged(METHOD_CHECKS, Trial(cls, settings), cls)


SAME = "the same numbers to the last bit; nothing may depend on who is visited when and where, or remembered elsewhere "
SAME += "than in client.state and server.state"

METHOD_CHECKS: tuple[Check[Trial], ...] = (
    Check("a plain run", "three rounds, four clients, every reply accepted, every loss a number", plain_run),
    Check(
        "replies fit their description",
        "replies() describes exactly what local() answers: its parts, shapes, dtypes and ranges",
        fitting_replies,
        alone=True,
    ),
    Check(
        "nothing stored on the method",
        "what clients must remember is in client.state, what the server must remember in server.state",
        stores_nothing,
        alone=True,
    ),
    Check(
        "settings are fixed",
        "leave model_config as Method has it: frozen=True, extra='forbid'",
        settings_hold,
        alone=True,
    ),
    Check("clients in reverse order", SAME, same_on(Reversed, "last client first")),
    Check("clients in any order", SAME, same_on(Shuffled, "clients shuffled")),
    Check("one worker process", SAME, same_on(partial(ProcessEngine, workers=1), "in a worker process")),
    Check("two worker processes", SAME, same_on(partial(ProcessEngine, workers=2), "in two worker processes")),
    Check("here, then in workers", SAME, same_on(partial(Moving, workers=2), "first here, then in workers")),
    Check("sites that get only bytes", SAME, same_on(Apart, "at sites of their own")),
    Check(
        "stopped after every round",
        "client.state and server.state hold all that the next round needs",
        stops_and_goes_on,
    ),
    Check(
        "looking changes nothing",
        "received() and personal() only look: they give a model and leave everything as it was",
        looking_changes_nothing,
    ),
    Check(
        "messages survive bytes",
        "messages of numbers, tensors and weights by name; no '/' in a name",
        messages_survive_bytes,
    ),
    Check("messages hold no samples", "training data stay with their client", messages_hold_no_samples),
    Check(
        "nothing changed in place",
        "new tensors instead of changed ones (w + d, not w.add_(d)): others hold the same",
        nothing_is_changed_in_place,
    ),
    Check(
        "batch norm and dropout",
        "random choices from client.stream() or server.stream(), never torch's global one; buffers travel with weights",
        batch_norm_and_dropout,
    ),
    Check("a body without weights", "it works with a model whose body has no weights", trains_a_model("linear")),
    Check("a head without weights", "it works with a model whose head has no weights", trains_a_model("headless")),
    Check("clients with one sample", "a client may have a single sample", one_sample_each),
    Check("another recipe", "any optimizer, schedule and loss of the recipe works", another_recipe),
    Check("newcomers", "what newcomer() promises, welcome() and arrival() give; nothing is kept", welcomes_newcomers),
    Check(
        "numbers instead of classes",
        "it predicts numbers by the squared error (batch.loss), or says needs_classes = True",
        predicts_numbers,
    ),
    Check("training helps", "on classes far apart, more than half of all predictions are right", training_helps),
    Check(
        "condensed replies",
        "merge(condense(some) + condense(others)) gives what merge(all) gives",
        condensed_replies,
    ),
    Check(
        "sums suffice",
        "merge() takes nothing but weighted sums (fedpac.weights) of the parts that sums() names",
        sums_suffice,
    ),
)
