"""The state of security: users, ACLs, quotas, delegation tokens in memory, and in a state topic that brokers follow.

Owns: that topic, its replay before clients are served, what follows it, who may write to it and when.
Must not know: what is decided by them, requests.

Any broker may write. For the time of a write it is the topic's only writer, knows all that others wrote, and decides
then what to write; one that has lost the lead meanwhile decides again. So changes of several brokers are in one order,
which all of them read. In memory there is only what was read back from the log.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from prometheus_client.core import Metric

from kop import clock
from kop.background import retried
from kop.cluster.client_topics import SECURITY_TOPIC
from kop.coordination.state_log import BATCH_RECORDS, Follower, KeyValue, StateLog, StateTopic, passes
from kop.errors import BackendError, ErrorCode, InternalError
from kop.metrics import gauge_value
from kop.security import records
from kop.security.acls import Acls
from kop.security.delegation_tokens import DelegationTokens
from kop.security.quotas import Quotas
from kop.security.users import Users
from kop.storage.base import Engine

_TOPIC: Final = StateTopic(SECURITY_TOPIC, 1, {"cleanup.policy": "compact", "compression.type": "producer"})
_FIRST_PAUSE: Final = 0.01
_LONGEST_PAUSE: Final = 0.5
_WRITE_SECONDS: Final = 20.0
"""The seconds that a write may take, with the pauses behind those that other brokers came before."""
_log = logging.getLogger(__name__)


class SecurityState:
    """Users, ACLs, quotas and tokens. Call `open` before anything is decided by them, and `close` at the end."""

    def __init__(self, engine: Engine, wall_ms: Callable[[], int]) -> None:
        """`wall_ms` gives the timestamps of records, in milliseconds since the epoch."""
        self._engine = engine
        self.users = Users()
        self.acls = Acls()
        self.quotas = Quotas()
        self.tokens = DelegationTokens()
        self.secret = b""
        """Random bytes of the cluster, made with its state topic, that no client is told."""
        self._not_understood: set[bytes] = set()
        """The keys of records that are there and say nothing to this version of the gateway."""
        self._state_log = StateLog(engine, _TOPIC, wall_ms)
        self._follower: Follower | None = None
        self._following: asyncio.Task[None] | None = None
        self._writing = asyncio.Lock()

    def on_user_change(self, callback: Callable[[str], None]) -> None:
        """Call `callback` with the user's name after each change of a credential, by whichever broker."""
        self.users.on_change(callback)

    async def open(self, waiting: Callable[[str], None] | None = None) -> None:
        """Read the whole state, and follow the records that any broker writes from now on. The first broker also makes
        the cluster's secret.

        Waits while storage cannot give the topic, and calls `waiting` with the reason. KopError if the topic is not
        possible.
        """
        what = f"read users and ACLs from the topic {SECURITY_TOPIC}"
        await retried(what, self._read, passes=passes, seconds=math.inf, waiting=waiting)
        assert self._follower is not None
        self._following = asyncio.get_running_loop().create_task(self._follower.follow())

    async def close(self) -> None:
        """Stop following what brokers write."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)

    async def _read(self) -> None:
        await self._state_log.open()
        topic = self._engine.topics.get(SECURITY_TOPIC)
        if topic is None or not topic.internal or self._state_log.partitions != 1:
            raise InternalError(f"the topic {SECURITY_TOPIC} was not made by kop: delete it, or give it another name")
        self._follower = self._state_log.follower(0, self._take)
        await self._follower.catch_up()
        if not self.secret:
            await self.write(self._new_secret)

    def _new_secret(self) -> Sequence[KeyValue]:
        if self.secret:  # another broker was first
            return ()
        return [records.of_secret(bytes.fromhex(clock.token_hex(records.SECRET_BYTES)))]

    async def write(self, decide: Callable[[], Sequence[KeyValue]]) -> None:
        """Write the records that `decide` returns for the newest state; they are in force on this broker on return.

        `decide` may be called several times; only the records of the last call are written, none if it returns none.
        BackendError if storage has failed, or not answered within 20 s: then it is not known if they were written. What
        `decide` raises is raised.
        """
        try:
            async with asyncio.timeout(_WRITE_SECONDS), self._writing:
                pause = _FIRST_PAUSE
                while (code := await self._write_as_leader(decide)) == ErrorCode.NOT_LEADER_OR_FOLLOWER:
                    await asyncio.sleep(clock.chance.uniform(0, pause))
                    pause = min(2 * pause, _LONGEST_PAUSE)
        except TimeoutError:
            code = ErrorCode.REQUEST_TIMED_OUT
        if code:
            raise BackendError(f"users and ACLs cannot be written to {SECURITY_TOPIC}", code)

    async def _write_as_leader(self, decide: Callable[[], Sequence[KeyValue]]) -> ErrorCode:
        """Become the only writer of the state, write what `decide` returns for it, read it back, and give that up
        again. Return the error code, NONE if all is written.
        """
        follower, log = self._follower, self._state_log
        if follower is None:
            raise InternalError("users and ACLs are written before `open`")
        await log.lead(0, lambda: None)
        try:
            await follower.catch_up()
            wanted = decide()
            code = await self._append(wanted) if wanted else ErrorCode.NONE
            if not code:
                await follower.catch_up()
            return code
        finally:
            await log.resign(0)

    async def _append(self, wanted: Sequence[KeyValue]) -> ErrorCode:
        ended: list[asyncio.Future[ErrorCode]] = []
        for begin in range(0, len(wanted), BATCH_RECORDS):
            future: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
            self._state_log.write(0, wanted[begin : begin + BATCH_RECORDS], _ending(future))
            ended.append(future)
        return next((code for code in await asyncio.gather(*ended) if code), ErrorCode.NONE)

    def _take(self, newest: Mapping[bytes, bytes | None], everything: bool) -> None:
        """Put records that were read from the log in force. `everything`: they are the whole state, not changes of
        it.
        """
        not_understood = set[bytes]() if everything else set(self._not_understood)
        changes: dict[str, dict[Any, Any]] = {
            kind: {} for kind in (records.ACL, records.SCRAM, records.QUOTA, records.TOKEN, records.SECRET)
        }
        for key, value in newest.items():
            entry = records.parsed(key, value)
            if entry is not None or value is None:
                not_understood.discard(key)
            else:
                if key not in self._not_understood:
                    _log.error("a record of %s is not understood, and does not count: %.100r", SECURITY_TOPIC, key)
                not_understood.add(key)
                entry = records.parsed(key, None)  # nor does what it takes the place of, here as after a restart
            if entry is not None:
                changes[entry.kind][entry.key] = entry.value
        self._not_understood = not_understood
        acls, credentials, quotas, tokens, secrets = changes.values()
        self.secret = secrets.get(None, self.secret)
        if everything:
            parts: tuple[Any, ...] = self.acls, self.users, self.quotas, self.tokens
            for part, of_part in zip(parts, (acls, credentials, quotas, tokens), strict=True):
                part.replace({key: value for key, value in of_part.items() if value is not None})
            return
        for acl, present in acls.items():
            (self.acls.add if present else self.acls.remove)(acl)
        for (name, mechanism), credential in credentials.items():
            self.users.put(name, mechanism, credential)
        for (entity, kind), limit in quotas.items():
            self.quotas.put(entity, kind, limit)
        for token_id, token in tokens.items():
            self.tokens.put(token_id, token)

    def collect(self) -> Iterable[Metric]:
        """Return metrics: the numbers of users, ACLs, quotas, tokens, and records that are not understood, and the
        seconds since storage last confirmed that they are the newest.
        """
        age = 0.0 if self._follower is None else self._follower.age
        return (
            gauge_value("kop_security_users", "Users with SCRAM credentials.", len(self.users)),
            gauge_value("kop_security_acls", "ACLs.", len(self.acls)),
            gauge_value("kop_security_quotas", "Quotas.", len(self.quotas)),
            gauge_value("kop_security_tokens", "Delegation tokens.", len(self.tokens)),
            gauge_value(
                "kop_security_records_not_understood",
                "Records of users, ACLs and quotas that are not understood and do not count.",
                len(self._not_understood),
            ),
            gauge_value(
                "kop_security_state_age_seconds",
                "Seconds since storage last confirmed that users and ACLs are the newest.",
                0.0 if math.isinf(age) else age,
            ),
        )


def _ending(future: asyncio.Future[ErrorCode]) -> Callable[[ErrorCode], None]:
    return lambda code: None if future.done() else future.set_result(code)
