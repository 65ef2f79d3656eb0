"""The REST of a worker, as pulsar-admin and `kop functions` use it, over a service of the test."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
from functions.rest_kit import STATS, FakeService, Rest, serving, status_of

from kop.address import is_loopback
from kop.client.errors import ClientError
from kop.functions import rest, rest_functions, shapes
from kop.functions.definitions import WorkerInfo
from kop.functions.other_workers import OtherWorkerError, OtherWorkers

F = "/admin/v3/functions/public/default/f"
TOKEN = "0123456789abcdef"


@pytest.fixture
def api() -> Iterator[Rest]:
    with serving(FakeService()) as served:
        yield served


@pytest.fixture
def created(api: Rest) -> Rest:
    """With a function that runs."""
    assert api.create().status == 204
    api.service.statuses["public/default/f", 0] = status_of()
    return api


# -- definitions


def test_create_takes_what_pulsar_admin_sends(api: Rest) -> None:
    answer = api.create(userConfig={"volume": 11.0, "share": 0.5, "list": [{"a": 2.0}]})
    assert (answer.status, answer.body, answer.headers["ETag"]) == (204, b"", '"101"')
    (request,) = api.service.sent
    config = request["config"]
    assert (request["kind"], request["expects"]) == ("create", None)
    assert request["by"] == "Pulsar-Java-v4 from 127.0.0.1"
    assert config["py"] == "f.py", "a path of the client means nothing here"
    assert config["userConfig"] == {"volume": 11, "share": 0.5, "list": [{"a": 2}]}
    assert all(type(config["userConfig"][name]) is kind for name, kind in (("volume", int), ("share", float)))
    assert api.service.packages["public/default/f"].data == b"def process(input): return input\n"


def test_an_update_has_only_what_its_author_gave(created: Rest) -> None:
    fields = {
        "tenant": "public",
        "namespace": "default",
        "name": "f",
        "parallelism": 2,
        "outputSchemaType": "",
        "forwardSourceMessageProperty": True,
        "subscriptionPosition": "Latest",
        "py": "/home/ann/f.py",
    }
    options = ("updateOptions", None, "application/json", b'{"updateAuthData":false}')
    part = ("functionConfig", None, "application/json", json.dumps(fields).encode())
    assert created("PUT", F, [part, options], User_Agent="Pulsar-Java-v4").status == 204
    assert created.service.sent[-1]["config"] == {"parallelism": 2}
    assert created.service.sent[-1]["expects"] == 101
    other = json.dumps({"subscriptionPosition": "Latest"}).encode()
    assert created("PUT", F, [("functionConfig", None, "application/json", other)]).status == 204
    assert created.service.sent[-1]["config"] == {"subscriptionPosition": "Latest"}, "others mean what they send"


def test_the_first_of_two_that_read_the_same_revision_wins(created: Rest) -> None:
    revision = created("GET", F).headers["ETag"]

    def update(parallelism: int, by: str) -> Any:
        part = ("functionConfig", None, "application/json", json.dumps({"parallelism": parallelism}).encode())
        return created("PUT", F, [part], If_Match=revision, User_Agent=by)

    assert update(2, "ann").status == 204
    answer = update(3, "bob")
    assert (answer.status, "made by ann" in answer.json()["reason"]) == (409, True)
    assert [row["kind"] for row in created("GET", f"{F}/history?limit=1").json()] == ["update"]
    for limit in ("0", "x", "100000"):
        refused = created("GET", f"{F}/history?limit={limit}")
        assert (refused.status, "from 1 to" in refused.json()["reason"]) == (400, True)
    history = created("GET", f"{F}/history").json()
    assert [(row["kind"], row["status"], row["by"].partition(" ")[0]) for row in history] == [
        ("create", 200, "Pulsar-Java-v4"),
        ("update", 200, "ann"),
        ("update", 409, "bob"),
    ]


def test_get_list_delete(created: Rest) -> None:
    got = created("GET", F)
    assert (got.json()["className"], got.json()["tenant"], got.headers["ETag"]) == ("f", "public", '"101"')
    created.create("a")
    assert created("GET", "/admin/v3/functions/public/default").json() == ["a", "f"]
    assert created("GET", "/admin/v3/functions/public/other").json() == []
    assert created("DELETE", F).status == 204
    answer = created("GET", F)
    assert (answer.status, answer.json()) == (404, {"reason": "Function public/default/f doesn't exist"})


@pytest.mark.parametrize("kind", ["start", "stop", "restart"])
def test_start_stop_restart(created: Rest, kind: str) -> None:
    json_type = "application/json"
    assert created("POST", f"{F}/{kind}", body=b"", Content_Type=json_type).status == 204
    assert created.service.sent[-1]["instance"] is None
    assert created("POST", f"{F}/0/{kind}", body=b"", Content_Type=json_type).status == 204
    assert (created.service.sent[-1]["kind"], created.service.sent[-1]["instance"]) == (kind, 0)
    answer = created("POST", f"{F}/1/{kind}", body=b"", Content_Type=json_type)
    assert (answer.status, "it has 1" in answer.json()["reason"]) == (404, True)


CONFIG = ("functionConfig", None, "application/json", b'{"className": "f", "inputs": ["in"]}')
DATA = ("data", "f.py", "application/octet-stream", b"x = 1")


@pytest.mark.parametrize(
    ("parts", "status", "reason"),
    [
        ([CONFIG], 400, "package is not provided"),
        ([DATA], 400, "className"),
        ([CONFIG, ("url", None, "text/plain", b"http://x/y.py")], 400, "packages of a URL are not fetched (http://x"),
        ([("functionConfig", None, None, b"{"), DATA], 400, "no JSON"),
        ([("functionConfig", None, None, b"[]"), DATA], 400, "must be an object"),
        ([("functionConfig", None, None, b"\xff"), DATA], 400, "no UTF-8"),
        ([CONFIG, CONFIG, DATA], 400, "two parts 'functionConfig'"),
        ([("functionConfig", None, None, b'{"name": "g"}'), DATA], 400, "the name is g, and the path names f"),
        ([("functionConfig", None, None, b'{"name": ["g"]}'), DATA], 400, "the name is ['g'], and the path names f"),
        ([("functionConfig", None, None, b" " * (1 << 20) + b"{}"), DATA], 413, "more than 1048576 bytes"),
        ([CONFIG, ("other", None, None, b" " * (2 << 20)), DATA], 413, "'other'"),
        (None, 415, "multipart/form-data"),
    ],
)
def test_what_is_wrong_with_a_request_is_said(api: Rest, parts: Any, status: int, reason: str) -> None:
    answer = api("POST", F, parts, None if parts else b"{}")
    assert (answer.status, reason in answer.json()["reason"]) == (status, True), answer
    assert api.service.definitions == {}


def test_a_package_that_is_too_large_is_refused(api: Rest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rest_functions, "PACKAGE_BYTES", 3)
    assert api("POST", F, [CONFIG, DATA]).status == 413


# -- status and statistics


def test_status_of_all_and_of_one(created: Rest) -> None:
    status = created("GET", f"{F}/status").json()
    assert (status["numInstances"], status["numRunning"]) == (1, 1)
    (instance,) = status["instances"]
    single = created("GET", f"{F}/0/status").json()
    assert instance == {"instanceId": 0, "status": single}
    assert single == {
        "running": True,
        "error": "",
        "numRestarts": 1,
        "numReceived": 7,
        "numSuccessfullyProcessed": 5,
        "numUserExceptions": 2,
        "numSystemExceptions": 0,
        "latestSystemExceptions": [],
        "workerId": "w1",
        "latestUserExceptions": [{"exceptionString": "ValueError: no", "timestampMs": 1_700_000_000_000}],
        "averageLatency": 2.0,
        "lastInvocationTime": 1_700_000_000_500,
        "at": None,
        "since": 1_700_000_000_000,
        "nextStart": None,
        "stderr": [],
        "lag": {"in-put-0": 4},
        "loop": None,
    }


def test_instances_that_nobody_runs_are_in_the_status(api: Rest) -> None:
    api.create(parallelism=2)
    api.service.statuses["public/default/f", 1] = status_of(running=False, error="the call hangs", stats=None)
    status = api("GET", f"{F}/status").json()
    assert (status["numInstances"], status["numRunning"]) == (2, 0)
    assert [each["status"]["error"] for each in status["instances"]] == [
        "it has no partition: there are more instances than partitions",
        "the call hangs",
    ]
    assert api("GET", f"{F}/stats").json()["receivedTotal"] == 0
    api.service.statuses.clear()
    error = "no worker has it: there is no topic of its inputs, in. Create one"
    assert api("GET", f"{F}/0/status").json()["error"] == error
    api.service.why_not_ready = "no worker leads at the moment"
    assert api("GET", f"{F}/0/status").json()["error"] == "no worker has it: no worker leads at the moment"
    api.service.why_not_ready = None
    api("POST", f"{F}/stop")
    assert api("GET", f"{F}/0/status").json()["error"] == "stopped"


def test_statistics_are_sums(created: Rest) -> None:
    created.service.statuses["public/default/f", 1] = status_of(stats=STATS | {"received": 100, "latency_sum_ms": 20})
    created("PUT", F, [("functionConfig", None, None, b'{"parallelism": 2}')])
    stats = created("GET", f"{F}/stats").json()
    assert {name: stats[name] for name in ("receivedTotal", "processedSuccessfullyTotal", "avgProcessLatency")} == {
        "receivedTotal": 107,
        "processedSuccessfullyTotal": 10,
        "avgProcessLatency": 3.0,
    }
    assert stats["1min"]["receivedTotal"] == 6
    assert [each["metrics"]["receivedTotal"] for each in stats["instances"]] == [7, 100]
    single = created("GET", f"{F}/0/stats").json()
    assert (single["userExceptionsTotal"], single["userMetrics"], single["1min"]["avgProcessLatency"]) == (
        2,
        {"size": 4.5},
        3.0,
    )


# -- messages, state, files


def test_trigger_answers_with_the_output_nothing_or_the_exception(created: Rest) -> None:
    created.service.answers = {
        "void": {"output": None, "error": None},
        "bad": {"output": None, "error": "ValueError: bad", "status": 422},
        "slow": {"output": None, "error": "not done in 60 s", "status": 408},
        "nobody": {"error": "no instance runs", "status": 503},
        "empty": {"output": "", "error": None},
    }

    def trigger(*parts: tuple[str, str | None, str | None, bytes]) -> tuple[int, bytes]:
        answer = created("POST", f"{F}/trigger", parts)
        return answer.status, answer.body

    assert trigger(("data", None, "text/plain", b"hello")) == (200, b"HELLO")
    stream = ("dataStream", "x.bin", "application/octet-stream", b"hi")
    assert trigger(stream, ("topic", None, "text/plain", b"in"), ("key", None, None, b"k")) == (200, b"HI")
    _, _, question = created.service.asked[-1]
    assert (question["topic"], question["key"]) == ("in", "aw==")
    assert trigger(("data", None, None, b"void")) == (204, b"")
    assert trigger(("data", None, None, b"empty")) == (200, b"")
    assert trigger(("data", None, None, b"bad")) == (422, b'{"reason": "ValueError: bad"}')
    assert trigger(("data", None, None, b"slow"))[0] == 408
    assert trigger(("data", None, None, b"nobody"))[0] == 503
    assert trigger(("topic", None, None, b"in"))[0] == 400
    assert created("POST", "/admin/v3/functions/public/default/g/trigger", []).status == 404


@pytest.mark.parametrize("number", ["²", "x", "-1", "9" * 5_000])
def test_what_is_no_number_is_refused(created: Rest, number: str) -> None:
    header = number.encode().decode("latin-1")  # as the bytes of a header are sent
    assert created("DELETE", F, If_Match=header).status == 400
    assert created("GET", f"{F}/history?limit={quote(number)}").status == 400
    assert created("GET", f"{F}/state/k?partition={quote(number)}").status == 400


def test_state(created: Rest) -> None:
    def put(path: str, text: str) -> int:
        return created("POST", f"{F}/state/{path}", [("state", None, "application/json", text.encode())]).status

    assert created("GET", f"{F}/state/k").json() == {"reason": "key 'k' doesn't exist."}
    assert put("k", '{"key": "k", "stringValue": "v", "version": 3}') == 204
    assert created("GET", f"{F}/state/k").json()["stringValue"] == "v"
    assert put("a%2Fb/c%20d", '{"numberValue": 7}') == 204
    assert created.service.asked[-1][2] | {"seconds": 0} == {
        "ask": "putstate",
        "key": "a/b/c d",
        "numberValue": 7,
        "seconds": 0,
    }
    assert created("GET", f"{F}/state/a%2Fb/c%20d").json()["numberValue"] == 7
    assert put("status", '{"byteValue": "AAE="}') == 204
    assert created("GET", f"{F}/state/status").json() == {
        "key": "status",
        "stringValue": None,
        "byteValue": "AAE=",
        "numberValue": None,
        "version": 0,
    }
    assert [put("k", text) for text in ("{}", '{"key": "b", "stringValue": "v"}', '{"numberValue": "1"}')] == [400] * 3
    for number in ("Infinity", "-Infinity", "NaN", "1e400", "1.5", str(2**63), "-1e19"):
        assert put("k", f'{{"numberValue": {number}}}') == 400, number
    for number, kept in (("7.0", 7), (str(2**63 - 1), 2**63 - 1), (str(-(2**63)), -(2**63))):
        assert put("k", f'{{"numberValue": {number}}}') == 204, number
        assert created.service.asked[-1][2]["numberValue"] == kept
    assert [put("k", text) for text in ('{"byteValue": "?"}', '{"stringValue": 1}', '{"numberValue": true}')] == [
        400
    ] * 3


def test_state_of_partitions(api: Rest) -> None:
    """Whoever asks knows the key, and not in which partition the messages were that made the value."""
    api.create(stateScope="partition", parallelism=2)
    for number in (0, 1):
        api.service.statuses["public/default/f", number] = status_of()
    api.service.partitions_of_keys = {"here": [1], "both": [0, 1]}
    api.service.values = {"here": {"numberValue": 5}, "both": {"numberValue": 6}}
    assert api("GET", f"{F}/state/here").json()["numberValue"] == 5
    assert api("GET", f"{F}/state/nowhere").status == 404
    answer = api("GET", f"{F}/state/both")
    assert (answer.status, "of the partitions 0, 1: name one" in answer.json()["reason"]) == (400, True)
    assert api("GET", f"{F}/state/both?partition=1").json()["numberValue"] == 6
    assert api("GET", f"{F}/state/both?partition=x").status == 400
    part = ("state", None, None, b'{"stringValue": "x"}')
    assert api("POST", f"{F}/state/k?partition=1", [part]).status == 204
    assert api.service.asked[-1][2]["partition"] == 1


def test_upload_and_download(created: Rest) -> None:
    parts = [("data", "f.py", "application/octet-stream", b"\x00x"), ("path", None, "text/plain", b"public/f.py")]
    assert created("POST", "/admin/v3/functions/upload", parts).status == 204
    assert created("GET", "/admin/v3/functions/download?path=public%2Ff.py").body == b"\x00x"
    assert created("GET", "/admin/v3/functions/download?path=no").status == 404
    got = created("GET", f"{F}/download?transform-function=false")
    assert (got.body, got.headers["Content-Disposition"]) == (
        b"def process(input): return input\n",
        'attachment; filename="f.py"',
    )


def test_there_are_no_built_in_functions(api: Rest) -> None:
    assert api("GET", "/admin/v3/functions/builtins").json() == []
    assert api("POST", "/admin/v3/functions/builtins/reload", body=b"").status == 204


# -- workers


def test_workers(created: Rest) -> None:
    cluster = created("GET", "/admin/v2/worker/cluster").json()
    assert cluster[1] == {"workerId": "w2", "workerHostname": "10.0.0.2", "port": 6750, "drained": False}
    assert created("GET", "/admin/v2/worker/cluster/leader").json().items() <= cluster[0].items()
    assert created("GET", "/admin/v2/worker/cluster/leader/ready").json() is True
    assert created("GET", "/admin/v2/worker/assignments").json() == {"w1": ["public/default/f:0"]}
    assert created("PUT", "/admin/v2/worker/rebalance").status == 204
    assert created("PUT", "/admin/v2/worker/drain").status == 204
    refused = created("PUT", "/admin/v2/worker/leader/drain?workerId=w2")
    assert (refused.status, refused.json()["reason"]) == (409, "no other worker is left")
    for method in ("PUT", "DELETE"):
        assert created(method, "/admin/v2/worker/drain?workerId=w3").status == 404
    assert [each["drained"] for each in created("GET", "/admin/v2/worker/cluster").json()] == [True, False]
    assert created("GET", "/admin/v2/worker/drain?workerId=w1").json()["status"] == "RUNNING"
    assert created("GET", "/admin/v2/worker/drain?workerId=w2").json()["status"] == "NOT_RUN"
    assert created("GET", "/admin/v2/worker/drain?workerId=w3").status == 404
    assert created("DELETE", "/admin/v2/worker/drain").status == 204
    assert created("PUT", "/admin/v2/worker/leader/drain?workerId=w2").status == 204
    assert created.service.moved == ["rebalance", "w1", "w1", "w2"]
    assert created("GET", "/admin/v2/worker/leader/drain?workerId=w2").json()["status"] == "SUCCESS"
    (stats,) = created("GET", "/admin/v2/worker-stats/functionsmetrics").json()
    assert (stats["name"], stats["metrics"]["receivedTotal"]) == ("public/default/f:0", 7)
    assert created("GET", "/admin/v2/worker-stats/metrics").json() == []


def test_operators_ask_for_health_and_metrics(created: Rest) -> None:
    assert created("GET", "/healthz").body == b"ok\n"
    assert created("GET", "/readyz").body == b"ready\n"
    created.service.why_not_ready = "the leader reads definitions"
    answer = created("GET", "/readyz")
    assert (answer.status, answer.body) == (503, b"the leader reads definitions\n")
    metrics = created("GET", "/metrics").body.decode()
    labels = 'cluster="kafka-1",fqfn="public/default/f",instance_id="0",name="f",namespace="public/default"'
    lines = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in metrics.splitlines() if line[0] != "#"}
    assert {name.partition("{")[0]: value for name, value in lines.items() if name.startswith("pulsar_function_")} == {
        "pulsar_function_received_total": 7,
        "pulsar_function_processed_successfully_total": 5,
        "pulsar_function_system_exceptions_total": 0,
        "pulsar_function_user_exceptions_total": 2,
        "pulsar_function_received_1min_total": 3,
        "pulsar_function_processed_successfully_1min_total": 2,
        "pulsar_function_system_exceptions_1min_total": 0,
        "pulsar_function_user_exceptions_1min_total": 1,
        "pulsar_function_process_latency_ms_count": 5,
        "pulsar_function_process_latency_ms_sum": 10,
        "pulsar_function_process_latency_ms_1min_count": 2,
        "pulsar_function_process_latency_ms_1min_sum": 6,
        "pulsar_function_last_invocation": 1_700_000_000_500,
        "pulsar_function_user_metric_count": 2,
        "pulsar_function_user_metric_sum": 9,
    }
    assert lines[f'kop_function_lag{{{labels},partition="0",tenant="public",topic="in-put"}}'] == 4
    assert lines[f'kop_function_restarts_total{{{labels},tenant="public"}}'] == 1
    assert lines[f'kop_function_running{{{labels},tenant="public"}}'] == 1


# -- who may ask


def test_with_a_token_nobody_else_is_answered() -> None:
    with serving(FakeService(), TOKEN) as api:
        for headers in (
            {},
            {"Authorization": "Bearer "},
            {"Authorization": f"Bearer {TOKEN}x"},
            {"Authorization": "é"},
        ):
            for path in (F, "/metrics", "/internal/status/public/default/f", "/admin/v2/worker/cluster", "/nowhere"):
                answer = api("GET", path, **headers)  # type: ignore[arg-type]
                assert (answer.status, "token" in answer.json()["reason"]) == (401, True), (path, headers)
        assert api("GET", "/healthz").status == api("GET", "/readyz").status == 200
        assert api("GET", "/admin/v3/functions/public/default", Authorization=f"Bearer {TOKEN}").json() == []


def test_another_address_than_loopback_needs_a_token() -> None:
    service: Any = FakeService()
    for host, token, reason in (("0.0.0.0", None, "--token-file"), ("::", None, "--token-file"), ("::1", "x", "16")):
        with pytest.raises(ClientError, match=reason):
            asyncio.run(rest.serve(service, host, 0, token))
    hosts = {"127.0.0.1": True, "127.8.8.8": True, "::1": True, "localhost": True, "127.example.org": False, "": False}
    assert {host: is_loopback(host) for host in hosts} == hosts


def test_a_page_in_a_browser_cannot_run_code(api: Rest) -> None:
    """A form of another site is sent by a browser without asking; a name that leads here is its own origin."""
    for headers in (
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Host": "evil.example:6750"},
        {"Host": "x"},
    ):
        answer = api("POST", F, [CONFIG, DATA], **headers)  # type: ignore[arg-type]
        assert (answer.status, "token" in answer.json()["reason"]) == (403, True), headers
    assert api.service.definitions == {}
    assert api("GET", "/healthz", Host="[::1]:6750").status == 200
    assert api("GET", "/metrics", Host="localhost").status == 200


def test_what_is_not_there_and_what_fails_has_a_reason(api: Rest, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = api("GET", "/admin/v3/functions")
    assert (answer.status, answer.json()["reason"]) == (404, "404: Not Found")
    assert api("PATCH", F, body=b"").status == 405

    def fails(error: Exception) -> tuple[int, str]:
        def broken(*_given: object) -> None:
            raise error

        monkeypatch.setattr(api.service, "definition", broken)
        answer = api("GET", F)
        return answer.status, answer.json()["reason"]

    assert fails(ClientError("no leader")) == (503, "no leader")
    assert fails(TimeoutError("not within 60 s")) == (408, "not within 60 s")
    assert fails(KeyError("k")) == (500, "KeyError: 'k'; the log says more")


# -- workers among themselves


def test_workers_ask_each_other() -> None:
    service = FakeService()
    service.statuses["public/default/f", 2] = status_of()
    service.statuses["public/default/g", 0] = status_of()

    async def asked(port: int, token: str | None) -> tuple[Any, Any]:
        peers = OtherWorkers(token)
        worker = WorkerInfo("w2", "127.0.0.1", port)
        try:
            question = {"ask": "trigger", "value": "aGk="}
            return (
                await peers.status(worker, "public/default/f"),
                await peers.ask(worker, "public/default/f", 2, question, 5.0),
            )
        finally:
            await peers.close()

    with serving(service, TOKEN) as api:
        port = int(api.url.rpartition(":")[2])
        statuses, answer = asyncio.run(asked(port, TOKEN))
        with pytest.raises(OtherWorkerError, match=r"worker w2 at 127\.0\.0\.1.* a token is needed"):
            asyncio.run(asked(port, None))
    assert statuses == {2: status_of()}
    assert answer == {"output": "SEk=", "error": None}
    assert service.asked == [("public/default/f", 2, {"ask": "trigger", "value": "aGk="})]
    with pytest.raises(OtherWorkerError, match=r"worker w2 at .* does not answer"):
        asyncio.run(asked(port, TOKEN))


def test_pulsar_tools_leave_nothing_out_that_was_given() -> None:
    given = {"outputSchemaType": "json", "forwardSourceMessageProperty": False, "subscriptionPosition": "Earliest"}
    assert shapes.config_of_pulsar_tools(given, is_update=True) == given


@pytest.mark.parametrize(
    ("number", "value", "told", "kept"),
    [
        (0, None, {"numberValue": 0}, 0),
        (None, b"", {"stringValue": ""}, b""),
        (None, "ä".encode(), {"stringValue": "ä"}, "ä".encode()),
        (None, b"\xff", {"byteValue": "/w=="}, b"\xff"),
    ],
)
def test_a_value_of_the_state_comes_back_as_it_went(
    number: int | None, value: bytes | None, told: dict[str, Any], kept: object
) -> None:
    assert shapes.state_told(number, value) == told
    assert shapes.state_kept(told) == kept


def test_a_loop_through_topics_is_noted_and_told_by_the_status(api: Rest) -> None:
    def make(name: str, given: str, output: str) -> str:
        part = (
            "functionConfig",
            None,
            "application/json",
            json.dumps({"className": "f", "py": "f.py", "inputs": [given], "output": output}).encode(),
        )
        answer = api("POST", f"/admin/v3/functions/public/default/{name}", [part, DATA])
        assert answer.status == 204
        return answer.headers.get("Kop-Note") or ""

    assert make("there", "a", "b") == ""
    text = "public/default/back writes a, public/default/there writes b, which public/default/back reads"
    assert make("back", "b", "a") == f"what public/default/back writes comes back to it: {text}"
    assert make("aside", "b", "d") == ""
    (instance,) = api("GET", "/admin/v3/functions/public/default/there/status").json()["instances"]
    assert instance["status"]["loop"]["text"].startswith("what public/default/there writes comes back to it: ")
    assert api("GET", "/admin/v3/functions/public/default/aside/0/status").json()["loop"] is None


def test_what_is_not_there_is_said_with_what_is_meant_and_only_if_that_is_known(created: Rest) -> None:
    created.create("Merge")
    there = "/admin/v3/functions/public/default"
    reason = created("GET", f"{there}/merge/status").json()["reason"]
    assert reason == "Function public/default/merge doesn't exist; is it Merge?"
    assert created("GET", f"{there}/zz").json()["reason"] == "Function public/default/zz doesn't exist"
    created.service.why_not_ready = "it has not started yet"
    answer = created("GET", f"{there}/merge")
    assert (answer.status, answer.json()["reason"]) == (
        503,
        "this worker does not know of public/default/merge: it has not started yet",
    )
