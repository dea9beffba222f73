"""What the Hub or the network said, in one sentence with what to do. No token, address or traceback is in it."""

from __future__ import annotations

import re
from collections.abc import Mapping

from halfbyte.errors import HalfbyteError, MachineError, UsageError
from halfbyte.machine.network import no_answer, retry_after, status_of

_AGAIN = "run the same command again: what has arrived is not sent twice"
_LOGIN = "log in with a token that may write (hf auth login, or HF_TOKEN), or check the name"
_TOO_MANY, _TOO_LARGE, _PAYMENT, _CONFLICT, _SERVER = 429, 413, 402, (409, 412), 500
_CHANGED = "the repository changed meanwhile", f"see who else writes to it, then {_AGAIN}"
_MEANINGS: Mapping[int, tuple[str, str]] = {
    401: ("the Hub does not accept the token, or there is no such repository", _LOGIN),
    403: ("this account may not write to the repository", _LOGIN),
    404: ("the Hub knows no such repository, branch or organisation", _LOGIN),
    _TOO_MANY: ("the Hub asks to slow down", f"wait some minutes, then {_AGAIN}"),
    **dict.fromkeys(_CONFLICT, _CHANGED),
}
_QUOTA = re.compile(r"quota|storage limit|storage usage|exceeded", re.IGNORECASE)
_ADDRESS = re.compile(r"https?://\S+")
_MOST_CHARACTERS = 200


def sentence(error: BaseException, repo: str, token: str | None = None) -> HalfbyteError | None:
    """Return the error that a user sees; None for one that is a bug of ours."""
    cause = _cause(error)
    name = type(cause).__name__
    status = status_of(cause)
    if name == "OfflineModeIsEnabled":
        return MachineError(
            "HF_HUB_OFFLINE is set, so that nothing can be sent", where=repo, fix="unset HF_HUB_OFFLINE"
        )
    if name == "HFValidationError":
        return UsageError(f"'{repo}' is no name of a repository", where="REPO", fix="write organisation/name")
    if isinstance(status, int):
        return _answered(status, name, _said(cause, token), repo)
    if no_answer(cause):
        what = f"the Hub cannot be reached: {_clean(str(cause) or name, token)}"
        return MachineError(what, where=repo, fix=f"check the network, then {_AGAIN}")
    if isinstance(cause, ValueError) and "metadata in README.md" in str(cause):
        return UsageError(f"the Hub refuses the card: {_clean(str(cause), token)}", where=repo, fix="halfbyte card OUT")
    if isinstance(cause, ValueError) and "LFS batch" in str(cause):
        return MachineError(f"the Hub refuses a file: {_clean(str(cause), token)}", where=repo, fix=_AGAIN)
    return None


def is_passing(error: BaseException) -> bool:
    """Whether trying again may help: too many requests, an error of the server, a lost connection."""
    cause = _cause(error)
    status = status_of(cause)
    if isinstance(status, int):
        return status == _TOO_MANY or status >= _SERVER or status in _CONFLICT
    return no_answer(cause)


def wait_asked(error: BaseException) -> float | None:
    """Return how many seconds the Hub asks to wait, if it does."""
    return retry_after(_cause(error))


def _answered(status: int, name: str, said: str, repo: str) -> HalfbyteError:
    """Return what an HTTP status means here."""
    if _QUOTA.search(said) or status in (_PAYMENT, _TOO_LARGE):
        fix = f"free or buy storage for the account, then {_AGAIN}"
        return MachineError(f"the account's storage on the Hub is used up (HTTP {status}){said}", where=repo, fix=fix)
    if name == "GatedRepoError":
        fix = "ask for access on its page, or give another name"
        return MachineError(f"the repository is gated, and this account has no access to it{said}", where=repo, fix=fix)
    what, fix = _MEANINGS.get(status, ("", ""))
    if not what and status >= _SERVER:
        what, fix = f"the Hub has an error of its own (HTTP {status})", f"later, {_AGAIN}"
    return MachineError(f"{what or f'the Hub refuses (HTTP {status})'}{said}", where=repo, fix=fix or "do what it says")


def _cause(error: BaseException) -> BaseException:
    """Return what lies below the wrapping that huggingface_hub's upload threads add."""
    while type(error) is RuntimeError and error.__cause__ is not None:
        error = error.__cause__
    return error


def _said(error: BaseException, token: str | None) -> str:
    """Return the server's own words after a colon, or nothing."""
    message = getattr(error, "server_message", None)
    return f": {_clean(message, token)}" if isinstance(message, str) and message.strip() else ""


def _clean(text: str, token: str | None) -> str:
    """Return a message on one line without addresses, which may be signed, and without the token."""
    if token:
        text = text.replace(token, "***")
    text = " ".join(_ADDRESS.sub("its address", text).split())
    text = "".join(letter for letter in text if letter.isprintable())
    return text if len(text) <= _MOST_CHARACTERS else text[: _MOST_CHARACTERS - 3] + "..."
