"""Messages: a stage and its answer as NVFlare's auxiliary requests and replies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, fields

from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import Shareable, make_reply

from torchmetrics_fed.errors import FederatedMetricError, InputError, ReleaseError
from torchmetrics_fed.exchange.stages import Asked

__all__ = ["TOPIC", "answer_in", "replied", "request"]

TOPIC = "torchmetrics_fed"
_ANSWER, _ERROR = "answer", "error"


def request(asked: Asked) -> Shareable:
    """Return the request that asks it."""
    message = Shareable()
    message.update(asdict(asked))
    return message


def replied(message: Shareable, answer: Callable[[Asked], bytes]) -> Shareable:
    """Return the reply to a request. An error of ours, which holds nothing of the data, is for the server's log."""
    try:
        given = {field.name: message.get(field.name) for field in fields(Asked)}
        texts, rest = ("stage", "round"), ("query", "message", "start")
        right = all(isinstance(given[name], str) for name in texts) and all(
            isinstance(given[name], bytes) for name in rest
        )
        if not right:
            raise InputError("Expected texts and bytes in the request but got others. Install one version everywhere.")
        reply = make_reply(ReturnCode.OK)
        reply[_ANSWER] = answer(Asked(**given))
    except FederatedMetricError as error:
        reply = make_reply(ReturnCode.HANDLER_EXCEPTION)
        reply[_ERROR] = str(error)
    return reply


def answer_in(reply: Shareable | None) -> bytes | FederatedMetricError | None:
    """Return the answer, or why there is none; None where the site was silent."""
    code = ReturnCode.TIMEOUT if reply is None else reply.get_return_code(ReturnCode.OK)
    if reply is None or code == ReturnCode.TIMEOUT:
        return None
    answer = reply.get(_ANSWER)
    if code == ReturnCode.OK and isinstance(answer, bytes):
        return answer
    said = reply.get(_ERROR)
    return ReleaseError(said if isinstance(said, str) else f"NVFlare says {code}.")
