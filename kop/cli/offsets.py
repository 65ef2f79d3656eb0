"""`kop offsets`: from Pulsar's message ids to Kafka's offsets and back, by Pulsar's own admin REST.

Owns: the two look-ups.
Must not know: the gateway; none has to run.
"""

from __future__ import annotations

from typing import Any

import click

from kop.cli.common import CliUsageError, fail
from kop.cli.older_entries import PERSISTENT, full_name, ledgers_with_entries
from kop.cli.pulsar import ask
from kop.config import Config

EPILOG = """A message id is LEDGER:ENTRY or LEDGER:ENTRY:BATCH-INDEX, as Pulsar's tools print it.

--numbering has to be that of the gateway; `kop config kop.pulsar.offsets` explains it.

\b
Examples:
  kop offsets orders --partition 2 --message-id 12:5:3
  kop offsets orders --partition 2 --offset 4711
  kop offsets sales/eu/orders --offset 4711"""


@click.command("offsets", epilog=EPILOG)
@click.argument("topic")
@click.option(
    "--partition", type=click.IntRange(min=0), metavar="N", default=0, show_default=True, help="Partition of the topic."
)
@click.option("--message-id", metavar="L:E[:B]", help="Print the offset of this message.")
@click.option("--offset", type=click.IntRange(min=0), metavar="N", help="Print the message id of this offset.")
@click.option("--admin-url", metavar="URL", help="Address of Pulsar's admin REST.")
@click.option("--namespace", metavar="TENANT/NAMESPACE", help="Namespace of the topic in Pulsar.")
@click.option(
    "--numbering",
    type=click.Choice(("index", "packed")),
    help="How the gateway makes offsets; without it, the setting kop.pulsar.offsets.",
)
@click.option("--plain", is_flag=True, help="The topic is not partitioned in Pulsar.")
def command(
    topic: str,
    partition: int,
    message_id: str | None,
    offset: int | None,
    admin_url: str | None,
    namespace: str | None,
    numbering: str | None,
    plain: bool,
) -> None:
    """Print the Kafka offset of a Pulsar message id, or the message id of an offset."""
    if (message_id is None) == (offset is None):
        raise CliUsageError("give either --message-id or --offset")
    from kop.pulsar_client.message_offsets import MessageId, MessageOffsetError, message_offsets

    config = Config.load()
    if namespace is not None and "/" in topic.removeprefix(PERSISTENT):
        raise CliUsageError(f"{topic} names its namespace already")
    name = full_name(topic, namespace or config.kop_pulsar_namespace)
    full = name if plain else f"{name}-partition-{partition}"
    try:
        wanted = None if message_id is None else MessageId.parse(message_id)
    except MessageOffsetError as error:
        raise CliUsageError(str(error)) from None
    packed = (numbering or config.kop_pulsar_offsets) == "packed"

    async def look_up(admin: Any) -> str:
        try:
            if wanted is not None:
                return str((await message_offsets(admin, full, wanted, packed=packed))[0])
            assert offset is not None
            return await (_unpacked if packed else _message_id)(admin, full, offset)
        except MessageOffsetError as error:
            return fail(str(error))

    click.echo(ask(admin_url or config.kop_pulsar_admin_url, config, look_up))


async def _unpacked(admin: Any, topic: str, offset: int) -> str:
    """Return the id, LEDGER:ENTRY:BATCH-INDEX, of the Pulsar message that a packed offset stands for. The command ends
    if there is no such message.
    """
    from kop.pulsar_client import PulsarError
    from kop.pulsar_client.message_offsets import entry_offsets
    from kop.pulsar_client.packed import unpack

    (ledger, entry), batch = unpack(offset)
    try:
        place = await entry_offsets(admin, topic, ledger, entry, packed=True)
    except PulsarError as error:
        if error.code != "NotFound":
            raise
        return fail(f"no message of {topic} has offset {offset}: it would be in entry {ledger}:{entry}, which is not")
    if offset > place.last:
        fail(f"no message of {topic} has offset {offset}: the entry {ledger}:{entry} has {place.last - place.base + 1}")
    return f"{ledger}:{entry}:{batch}"


async def _message_id(admin: Any, topic: str, offset: int) -> str:
    """Return the id, LEDGER:ENTRY:BATCH-INDEX, of the message that has an offset: a bisection over the entries, whose
    offsets ascend; those at the beginning that are older than the index are passed by. The command ends if no message
    has it; MessageOffsetError if none of the entries that were read has an index.
    """
    from kop.pulsar_client.message_offsets import MessageOffsetError, entry_offsets

    place = without_index = None
    entries = ledgers_with_entries(await admin.internal_stats(topic))
    low, high = 0, sum(count for _, count in entries)
    while low < high:
        middle = (low + high) // 2
        rest = middle
        for ledger, count in entries:  # noqa: B007 - the ledger that holds it
            if rest < count:
                break
            rest -= count
        try:
            place = await entry_offsets(admin, topic, ledger, rest, packed=False)
        except MessageOffsetError as error:
            without_index, low = error, middle + 1
            continue
        if place.base <= offset <= place.last:
            return f"{ledger}:{rest}:{offset - place.base}"
        low, high = (middle + 1, high) if offset > place.last else (low, middle)
    if place is None and without_index is not None:
        raise without_index
    return fail(f"no message of {topic} has offset {offset}")
