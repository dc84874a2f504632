"""What obstore's errors mean, said without what may be a credential."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from obstore.exceptions import NotFoundError, PermissionDeniedError, UnauthenticatedError

from penstock.core.errors import StoreUnavailable
from penstock.stores.log.errors import StorageGone, StorageRefused

ABSENT = (NotFoundError, FileNotFoundError)
"""obstore declares the one and raises the other."""
LONGEST = 500
_BUCKET_GONE = re.compile("NoSuchBucket|ContainerNotFound|bucket does not exist", re.IGNORECASE)
_REFUSED = re.compile(
    "ExpiredToken|InvalidToken|InvalidAccessKeyId|SignatureDoesNotMatch|AccessDenied|token request|not authorized"
    "|status code: 40[13]"
)
"""obstore has errors of their own for these, but not when it lists, deletes, or gets no token to ask with."""
_SECRET = re.compile("^(AWS|AZURE|GOOGLE)_.*(SECRET|KEY|TOKEN|SAS)", re.IGNORECASE)
"""Variables whose values an error must not repeat."""
_XML = re.compile(r"<\?xml.*?\?>")
_BESIDE = re.compile(r"<(?!/?(?:Error|Code|Message)\b)([\w-]+)>.*?(?:</\1>|$)")
"""What a service adds to code and message may be the token that it was shown, or the request that was signed."""
_SHOWN_TO_IT = re.compile(
    r"\b((?:Bearer|Basic|SharedKey|SharedKeyLite) (?=[^\s<]{16})|(?:Credential|Signature|sig|X-Amz-[\w-]+)=)[^\s<,&]+",
    re.IGNORECASE,
)
"""Credentials and signatures by where they stand: a careless service repeats some that nobody knows here."""
_USER = re.compile(r"://[^/\s]+@")


def known_secrets() -> list[str]:
    """The credentials that the environment holds."""
    return [value for variable, value in os.environ.items() if _SECRET.search(variable) and len(value) > 3]


def is_of_bucket(error: Exception) -> bool:
    """Whether not an object is absent but the whole bucket."""
    return _BUCKET_GONE.search(str(error)) is not None


def refusal(store: str, error: Exception, secrets: Iterable[str]) -> StoreUnavailable:
    """An error of obstore's as one of ours, which says what was found and what to do."""
    text = str(error)
    reason = shown(text, secrets)
    if isinstance(error, PermissionDeniedError | UnauthenticatedError) or _REFUSED.search(text):
        return StorageRefused(store, reason)
    if isinstance(error, ABSENT) or is_of_bucket(error):
        return StorageGone(store, reason)
    return StoreUnavailable(store, reason)


def shown(text: str, secrets: Iterable[str]) -> str:
    """What obstore said and the service answered, on one line."""
    line = " ".join(_XML.sub("", text.partition("\n\nDebug source")[0]).split())
    line = _BESIDE.sub("", line)
    line = re.sub(r"\?[^\s\"')]+", "?…", line)
    line = _SHOWN_TO_IT.sub(r"\1…", _USER.sub("://…@", line))
    for secret in sorted(secrets, key=len, reverse=True):  # one may be a part of another
        line = line.replace(secret, "…")
    return line if len(line) <= LONGEST else f"{line[:LONGEST]}…"
