"""What can go wrong with the embedded PostgreSQL, and what to do about it.

EmbeddedError
├── EmbeddedUnsupported     this machine cannot run it as things are
├── EmbeddedDataUnusable    the data folder cannot be used
└── EmbeddedStartFailed     the server did not come up
"""

from __future__ import annotations

from penstock.core.errors import PenstockError


class EmbeddedError(PenstockError):
    """The embedded PostgreSQL is not available. Act on the message, or set PENSTOCK_URL to another server."""

    code = "embedded_error"


class EmbeddedUnsupported(EmbeddedError):
    """This machine lacks something the server needs. Provide what the message names; do not just retry."""

    code = "embedded_unsupported"


class EmbeddedDataUnusable(EmbeddedError):
    """The data folder cannot be used as it is. The data was not changed; act on the message, then retry."""

    code = "embedded_data_unusable"


class EmbeddedStartFailed(EmbeddedError):
    """The server did not become ready. The message quotes its log; the data is safe, and so is a retry."""

    code = "embedded_start_failed"
