"""ApiVersions (18), versions 0 to 4.

- Answers the registry's ranges, nothing else. The one exception is Produce, advertised from version 0 although 0 to 2
  are refused, as Kafka 4 does: librdkafka before 2.11 stops compressing in silence otherwise (KAFKA-18659).
- A version above ours is answered in version 0 with UNSUPPORTED_VERSION and ApiVersions' own range as the only entry
  (KIP-511): `unsupported`.
- `transaction.version` 2 is finalized (KIP-890, KIP-584) where storage has transactions: Java's producer goes by that
  version of transactions then. All brokers of a cluster say the same, so its epoch never changes.
- Client software names are checked as KIP-511 says: INVALID_REQUEST if they are not legal.
"""

from __future__ import annotations

import re
from typing import Any, Final

from kop.errors import ErrorCode
from kop.handlers.api import Api, Context
from kop.handlers.gateway import Gateway
from kop.wire.messages import ApiVersionsResponse
from kop.wire.rows import Response

KEY = 18
TRANSACTION_VERSION = "transaction.version"
"""The name of the feature that gives the version of transactions (KIP-890)."""
LATEST = 2
"""The latest value of `transaction.version`, which is the finalized one."""
FEATURES_EPOCH = 1
"""The epoch of the finalized features, which never changes, because they do not change while a cluster runs."""
MAX_VERSION = 4
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?\Z")

_KEPT: Final = 100
"""The characters that are kept of the name, and of the version, of a client's software."""


def api_versions(gw: Gateway, ctx: Context, request: Any) -> Response:
    """Answer with the served APIs and their versions, from version 3 on also with the feature `transaction.version` if
    storage has transactions. The name and version of the client's software are kept for the log; INVALID_REQUEST if
    they are not legal.
    """
    if ctx.version >= 3:
        name, version = request.client_software_name, request.client_software_version
        if not (_SOFTWARE.match(name) and _SOFTWARE.match(version)):
            return ctx.response(error_code=ErrorCode.INVALID_REQUEST)
        # Logs show no more, and nobody has logged in yet whose memory this is.
        ctx.conn.software_name, ctx.conn.software_version = name[:_KEPT], version[:_KEPT]
    rows = [(api.key, api.advertised_min, api.max_version) for api in gw.apis.values()]
    features: dict[str, Any] = {}
    if ctx.version >= 3 and gw.engine.transactions.refusal is None:
        features["finalized_features"] = [(TRANSACTION_VERSION, LATEST, LATEST)]
        features["finalized_features_epoch"] = FEATURES_EPOCH
        if ctx.version >= 4:  # clients that ask in version 3 do not take features that begin at 0
            features["supported_features"] = [(TRANSACTION_VERSION, 0, LATEST)]
    return ctx.response(error_code=ErrorCode.NONE, api_keys=rows, **features)


def unsupported() -> Any:
    """Return the answer to a version of ApiVersions that is not served: UNSUPPORTED_VERSION, in version 0 (KIP-511)."""
    return ApiVersionsResponse(version=0, error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[(KEY, 0, MAX_VERSION)])


APIS = (Api(KEY, 0, MAX_VERSION, api_versions, other_version=unsupported),)
