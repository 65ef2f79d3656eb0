"""Change rights under load: python -m conformance.rights [--start-kop-pulsar] [--changes N] [--seed N] [--fast].

Owns: the gateways of a run, and what is printed.
Must not know: what is changed and what is right.

The exit code is 0 where nothing was answered by what held before, after its bound; 1 otherwise.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from conformance.progress import ProgressLine
from conformance.rights.churn import ByGrants, churn, make_certificate
from conformance.rights.grants import pulsar_settings, super_token
from conformance.rights.told import Gateway
from conformance.servers import SETTINGS, Kop, KopOverPulsar, Pulsar, free_port
from kop.security.quotas import QuotaKind
from kop.security.settings import PULSAR_AUTHORIZER, STANDARD_AUTHORIZER

CHANGES, FAST_CHANGES = 100, 8


def _gateway(folder: Path) -> tuple[Gateway, dict[str, str]]:
    """Return a gateway that is not started yet, and its settings."""
    keystore = folder / "keystore.pem"
    make_certificate(keystore)
    ports = [free_port() for _ in range(3)]
    places = dict(zip(("OPEN", "LOGIN", "TLS"), ports, strict=True))
    settings = {
        "listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in places.items()),
        "listener.security.protocol.map": "OPEN:PLAINTEXT,LOGIN:SASL_PLAINTEXT,TLS:SASL_SSL",
        "listener.name.tls.ssl.keystore.location": str(keystore),
        "authorizer.class.name": STANDARD_AUTHORIZER,
        "super.users": ";".join(["User:ANONYMOUS", *(f"User:quota-{kind}" for kind in QuotaKind)]),
        "connection.failed.authentication.delay.ms": "0",
        "max.connections.per.ip": "1000",
    }
    opened, login, tls = (("127.0.0.1", port) for port in ports)
    return Gateway(opened, login, tls, keystore), settings


def _start(over_pulsar: bool, stack: ExitStack, folder: Path) -> tuple[list[Gateway], ByGrants | None]:
    """Start the gateways: one of the embedded engine, or two over one Pulsar, and a third one that goes by its grants.

    A Pulsar that was there before has none.
    """
    if not over_pulsar:
        gateway, settings = _gateway(folder)
        return [_started(Kop(folder, settings=SETTINGS | settings), gateway, stack)], None
    conf = folder / "pulsar.conf"
    conf.write_text(pulsar_settings())
    pulsar = Pulsar(EXTRA_CONF=str(conf), TOKEN=super_token())
    urls = stack.enter_context(pulsar)
    token = super_token() if pulsar.own else ""
    gateways: list[Gateway] = []
    namespace = ""
    for number in range(3 if pulsar.own else 2):
        place = folder / f"gateway-{number + 1}"
        place.mkdir()
        gateway, settings = _gateway(place)
        if number == 2:
            namespace = ""  # its own
            settings["authorizer.class.name"] = PULSAR_AUTHORIZER
        settings = SETTINGS | settings | {"node.id": str(number + 1)}
        over = KopOverPulsar(urls, namespace, folder=place, settings=settings, token=token)
        gateways.append(_started(over, gateway, stack))
        namespace = over.behind.split(",")[1]
    return gateways[:2], ByGrants(gateways[2], urls[1], namespace) if pulsar.own else None


def _started(server: Kop, gateway: Gateway, stack: ExitStack) -> Gateway:
    server.address = f"127.0.0.1:{gateway.open[1]}"
    stack.enter_context(server)
    return gateway


def main() -> int:
    """Run; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m conformance.rights", description=__doc__)
    parser.add_argument("--start-kop-pulsar", action="store_true", help="three gateways over an Apache Pulsar")
    parser.add_argument("--changes", type=int, default=CHANGES, help="of each kind (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--fast", action="store_true", help=f"{FAST_CHANGES} changes of each kind")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="kop-rights-"))
    with ExitStack() as stack:
        progress = stack.enter_context(ProgressLine())
        progress.say("the servers start")
        gateways, by_grants = _start(options.start_kop_pulsar, stack, folder)
        changes = FAST_CHANGES if options.fast else options.changes
        told = asyncio.run(churn(gateways, by_grants, changes, options.seed, folder, progress.update))
    for what, count in sorted(told.changes.items()):
        late = told.worst[what] * 1000
        print(f"{what}: {count} changes; what held before was last answered {late:.0f} ms after one")
    for line in told.wrong[:20]:
        print(line)
    print(f"{told.asked} answers as they may be, {len(told.wrong)} wrong; seed {options.seed}")
    if told.wrong:
        print(f"kept: {folder}")
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if told.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
