"""Turn errors of the Hub and the network into messages with a fix, without tokens, URLs or tracebacks."""

from __future__ import annotations

import re
from collections.abc import Mapping

from halfbyte.checkpoint.remote.download import no_answer, retry_after, status_of
from halfbyte.errors import HalfbyteError, MachineError, UsageError

_AGAIN = "run the same command again to resume the upload"
_LOGIN = "log in with a token that has write access (hf auth login, or HF_TOKEN), or check the name"
_TOO_MANY, _TOO_LARGE, _PAYMENT, _CONFLICT, _SERVER = 429, 413, 402, (409, 412), 500
_CHANGED = "the repository changed during the upload", f"check for other writers, then {_AGAIN}"
_MEANINGS: Mapping[int, tuple[str, str]] = {
    401: ("the Hub rejected the token, or the repository does not exist", _LOGIN),
    403: ("this account has no write access to the repository", _LOGIN),
    404: ("unknown repository, branch or organization", _LOGIN),
    _TOO_MANY: ("rate limited by the Hub", f"wait a few minutes, then {_AGAIN}"),
    **dict.fromkeys(_CONFLICT, _CHANGED),
}
_QUOTA = re.compile(r"quota|storage limit|storage usage|exceeded", re.IGNORECASE)
_ADDRESS = re.compile(r"https?://\S+")
_MOST_CHARACTERS = 200


def sentence(error: BaseException, repo: str, token: str | None = None) -> HalfbyteError | None:
    """Return the error to show to the user; None for an unknown error, which is a bug."""
    cause = _cause(error)
    name = type(cause).__name__
    status = status_of(cause)
    if name == "OfflineModeIsEnabled":
        return MachineError("cannot upload while HF_HUB_OFFLINE is set", where=repo, fix="unset HF_HUB_OFFLINE")
    if name == "HFValidationError":
        return UsageError(f"'{repo}' is not a valid repository name", where="REPO", fix="use organization/name")
    if isinstance(status, int):
        return _answered(status, name, _server_message(cause, token), repo)
    if no_answer(cause):
        what = f"the Hub cannot be reached: {_clean(str(cause) or name, token)}"
        return MachineError(what, where=repo, fix=f"check the network, then {_AGAIN}")
    if isinstance(cause, ValueError) and "metadata in README.md" in str(cause):
        what = f"the Hub rejected the card: {_clean(str(cause), token)}"
        return UsageError(what, where=repo, fix="run halfbyte card OUT")
    if isinstance(cause, ValueError) and "LFS batch" in str(cause):
        return MachineError(f"the Hub rejected a file: {_clean(str(cause), token)}", where=repo, fix=_AGAIN)
    return None


def is_passing(error: BaseException) -> bool:
    """Whether a retry may help: rate limit, conflict, server error, or lost connection."""
    cause = _cause(error)
    status = status_of(cause)
    if isinstance(status, int):
        return status == _TOO_MANY or status >= _SERVER or status in _CONFLICT
    return no_answer(cause)


def retry_after_s(error: BaseException) -> float | None:
    """Return the Retry-After seconds of the Hub's response, if any."""
    return retry_after(_cause(error))


def _answered(status: int, name: str, message: str, repo: str) -> HalfbyteError:
    """Return the error for an HTTP status."""
    if _QUOTA.search(message) or status in (_PAYMENT, _TOO_LARGE):
        fix = f"free or buy storage for the account, then {_AGAIN}"
        return MachineError(
            f"the account's storage quota on the Hub is exceeded (HTTP {status}){message}", where=repo, fix=fix
        )
    if name == "GatedRepoError":
        fix = "request access on its page, or use another name"
        return MachineError(f"the repository is gated, and this account has no access{message}", where=repo, fix=fix)
    what, fix = _MEANINGS.get(status, ("", ""))
    if not what and status >= _SERVER:
        what, fix = f"server error of the Hub (HTTP {status})", f"wait a few minutes, then {_AGAIN}"
    what = what or f"the Hub rejected the request (HTTP {status})"
    return MachineError(f"{what}{message}", where=repo, fix=fix or "follow the Hub's message")


def _cause(error: BaseException) -> BaseException:
    """Return the error inside the RuntimeErrors that huggingface_hub's upload threads raise."""
    while type(error) is RuntimeError and error.__cause__ is not None:
        error = error.__cause__
    return error


def _server_message(error: BaseException, token: str | None) -> str:
    """Return the server's message after a colon, or an empty string."""
    message = getattr(error, "server_message", None)
    return f": {_clean(message, token)}" if isinstance(message, str) and message.strip() else ""


def _clean(text: str, token: str | None) -> str:
    """Return a message on one line without the token and without URLs, which may be signed."""
    if token:
        text = text.replace(token, "***")
    text = " ".join(_ADDRESS.sub("URL", text).split())
    text = "".join(letter for letter in text if letter.isprintable())
    return text if len(text) <= _MOST_CHARACTERS else text[: _MOST_CHARACTERS - 3] + "..."
