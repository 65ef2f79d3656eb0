"""Commands of `kop functions` that ask a worker by its REST.

Owns: what they print, as tables and as JSON.
Must not know: how a worker does what it is asked for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click

from kop.cli.common import CliUsageError, fail, json_option, note, print_json, print_rows, print_table
from kop.cli.functions_flags import (
    admin_options,
    config_file,
    function_name,
    function_name_if_any,
    function_options,
    given_flags,
    instance_option,
)
from kop.cli.lines import shown as shown_bytes
from kop.cli.times import iso_time

if TYPE_CHECKING:
    from kop.cli.functions_rest import FormPart, RestAnswer, WorkerRest

revision_option = click.option(
    "--revision", metavar="N", type=click.IntRange(0), help="Only if the function is of this revision."
)
partition_option = click.option(
    "--partition", metavar="N", type=click.IntRange(0), help="Whose state, with stateScope partition."
)


STDERR_LINES = 10
"""The number of lines of an instance that the table shows; --json has all that are kept."""


# -- definitions


@click.command("create", short_help="Create a function that workers run.")
@function_options
@admin_options
@json_option
def create(worker: WorkerRest, as_json: bool, function_config_file: str | None, **flags: Any) -> None:
    """Create a function; it misses no message that is sent once this command has ended."""
    from kop.functions.config_reading import fields, from_flags
    from kop.functions.spec import SpecError
    from kop.functions.topics import TopicNames

    given, file = given_flags(flags), config_file(function_config_file)
    try:
        # Names of topics are looked at by the worker, which knows its server.
        spec, notes = from_flags(given, file, TopicNames(has_namespaces=True))
        config = fields(given, file)
    except SpecError as error:
        raise CliUsageError(str(error)) from None
    for line in notes:
        note(line)
    form = _form(config, spec.py)
    answer = worker.function("POST", spec.fqfn, form=form)
    _say_revision("created", spec.fqfn, answer, as_json)


@click.command("update", short_help="Change some of a function.")
@function_options
@revision_option
@admin_options
@json_option
def update(
    worker: WorkerRest, as_json: bool, revision: int | None, function_config_file: str | None, **flags: Any
) -> None:
    """Change what the flags and the file say, and nothing else; with --py its code, too.

    `null` in the file takes a field away.

    It is refused if somebody else has changed the function since it was read: by this command, or, with --revision, by
    `kop functions get`.
    """
    from kop.functions.config_reading import fields
    from kop.functions.spec import SpecError

    try:
        config = fields(given_flags(flags), config_file(function_config_file))
    except SpecError as error:
        raise CliUsageError(str(error)) from None
    fqfn = _fqfn_of(config)
    code = config.pop("py", None)
    if not config and code is None:
        raise CliUsageError("there is nothing to change: give a flag of what has to be another")
    form = _form(config, code)
    if revision is None:
        revision = worker.function("GET", fqfn).revision
    answer = worker.function("PUT", fqfn, form=form, revision=revision)
    _say_revision("updated", fqfn, answer, as_json)


def _fqfn_of(config: dict[str, Any]) -> str:
    """Remove tenant, namespace, name and fqfn from the fields of a function, and return its full name, in
    public/default unless they say otherwise. A usage error if they name no function.
    """
    parts = (config.pop("tenant", None) or "public", config.pop("namespace", None) or "default")
    name, fqfn = config.pop("name", None), config.pop("fqfn", None)
    if not fqfn and not name:
        raise CliUsageError("name the function: --name or --fqfn")
    return str(fqfn or "/".join((*parts, name)))


def _form(config: Mapping[str, Any], code: str | None) -> dict[str, FormPart]:
    from kop.cli.functions_rest import FormPart
    from kop.functions.packages import PackageError, read_package

    form = {"functionConfig": FormPart(json.dumps(config).encode())}
    if code is not None:
        path = Path(code)
        if not path.is_file():
            raise CliUsageError(f"{code}: there is no such file")
        try:
            form["data"] = FormPart(read_package(path).data, path.name)
        except PackageError as error:
            fail(str(error))
    return form


def _say_revision(done: str, fqfn: str, answer: RestAnswer, as_json: bool) -> None:
    if as_json:
        print_json({"function": fqfn, "revision": answer.revision, "note": answer.note or None})
        return
    shown = "" if answer.revision is None else f", revision {answer.revision}"
    click.echo(f"{done} {fqfn}{shown}")
    if answer.note:
        note(answer.note)


@click.command("get", short_help="Print the definition of a function.")
@function_name
@admin_options
@json_option
def get(worker: WorkerRest, fqfn: str, as_json: bool) -> None:
    """Print the definition of a function, as a file for --function-config-file, and its revision."""
    answer = worker.function("GET", fqfn)
    config = answer.json()
    if as_json:
        print_json({"function": fqfn, "revision": answer.revision, "config": config})
        return
    import yaml

    click.echo(f"# {fqfn}, revision {answer.revision}")
    click.echo(yaml.safe_dump(config, sort_keys=False, allow_unicode=True), nl=False)


@click.command("list", short_help="List the functions of a namespace.")
@click.option("--tenant", metavar="NAME", default="public", show_default=True, help="Their tenant.")
@click.option("--namespace", metavar="NAME", default="default", show_default=True, help="Their namespace.")
@admin_options
@json_option
def list_functions(worker: WorkerRest, tenant: str, namespace: str, as_json: bool) -> None:
    """List the functions of a namespace, and how many of their instances run."""
    rows = []
    for name in worker.send("GET", f"/admin/v3/functions/{quote(tenant)}/{quote(namespace)}").json():
        status = worker.function("GET", f"{tenant}/{namespace}/{name}", "/status").json()
        rows.append({"function": name, "running": status["numRunning"], "instances": status["numInstances"]})
    columns = {"function": "FUNCTION", "running": ">RUNNING", "instances": ">INSTANCES"}
    print_rows(rows, as_json, columns, f"there are no functions in {tenant}/{namespace}")


@click.command("delete", short_help="Delete a function.")
@function_name
@revision_option
@admin_options
def delete(worker: WorkerRest, fqfn: str, revision: int | None) -> None:
    """Delete a function, and with it its offsets, unless --cleanup-subscription was false.

    Its state stays, for a function of the same name: kop topics delete __kop_functions_state.TENANT.NAMESPACE.NAME
    """
    worker.function("DELETE", fqfn, revision=revision)
    click.echo(f"deleted {fqfn}")


@click.command("history", short_help="Show who changed a function, and who lost.")
@function_name
@click.option(
    "--limit", metavar="N", type=click.IntRange(1, 10_000), default=100, show_default=True, help="The last N requests."
)
@admin_options
@json_option
def history(worker: WorkerRest, fqfn: str, limit: int, as_json: bool) -> None:
    """Show the requests to change a function: when, by whom, and what became of them.

    Those that lost are left out if the workers had some 16,000 requests after them, for all functions together.
    """
    requests = worker.function("GET", fqfn, f"/history?limit={limit}").json()
    if as_json:
        print_json(requests)
        return
    rows = []
    for row in requests:
        won = row["status"] is not None and row["status"] < 300
        outcome = "waits" if row["status"] is None else "won" if won else "lost" if row["status"] == 409 else "refused"
        target = row["kind"] if row.get("instance") is None else f"{row['kind']} {row['instance']}"
        rows.append(
            (
                iso_time(row["at_ms"]),
                target,
                outcome,
                row["revision"],
                row["by"],
                (row["reason"] or "").partition("\n")[0] or None,
            )
        )
    print_table(["TIME", "CHANGE", "OUTCOME", ">REVISION", "BY", "REASON"], rows)


# -- instances


def _state_change(kind: str, done: str, words: str) -> click.Command:
    @click.command(kind, short_help=words)
    @function_name
    @instance_option
    @admin_options
    def change(worker: WorkerRest, fqfn: str, instance_id: int | None) -> None:
        path = "" if instance_id is None else f"/{instance_id}"
        worker.function("POST", fqfn, f"{path}/{kind}")
        click.echo(f"{done} {fqfn}" + ("" if instance_id is None else f", instance {instance_id}"))

    change.help = words
    return change


start = _state_change("start", "started", "Start a function that was stopped.")
stop = _state_change("stop", "stopped", "Stop a function, until it is started.")
restart = _state_change("restart", "restarted", "Start the processes of a function anew.")


@click.command("status", short_help="Show what the instances of a function do.")
@function_name
@instance_option
@admin_options
@json_option
def status(worker: WorkerRest, fqfn: str, instance_id: int | None, as_json: bool) -> None:
    """Show each instance: if it runs, where, since when, its counts, and what went wrong.

    Below the table is what is known of an instance that fails or is in a call: the error and its record, when it is
    started again, and the last lines that it wrote. LAG is counted from the committed offsets if it does not run.
    """
    rows = []
    for number, given in _instances(worker, fqfn, instance_id, "status"):
        at, loop = given.get("at"), given["loop"]
        rows.append(
            {
                "instance": number,
                "running": given["running"],
                "worker": given["workerId"] or None,
                "since_ms": given["since"],
                "next_start_ms": given["nextStart"],
                "received": given["numReceived"],
                "processed": given["numSuccessfullyProcessed"],
                "exceptions": given["numUserExceptions"] + given["numSystemExceptions"],
                "lag": sum(given["lag"].values()) if given["lag"] else None,
                "restarts": given["numRestarts"],
                "last_ms": given["lastInvocationTime"] or None,
                "at": None if at is None else {"topic": at[0], "partition": at[1], "offset": at[2]},
                "error": given["error"] or None,
                "loop": loop and {"text": loop["text"], "since_ms": loop["since"]},
                "stderr": given["stderr"],
                "latest_exceptions": [
                    {"text": each["exceptionString"], "at_ms": each["timestampMs"]}
                    for each in [*given["latestUserExceptions"], *given["latestSystemExceptions"]]
                ],
            }
        )
    if as_json:
        print_json(rows)
        return
    columns = {
        "instance": ">INSTANCE",
        "running": "RUNNING",
        "worker": "WORKER",
        "since_ms": "SINCE",
        "received": ">RECEIVED",
        "processed": ">PROCESSED",
        "exceptions": ">EXCEPTIONS",
        "lag": ">LAG",
        "restarts": ">RESTARTS",
    }
    print_rows([row | {"since_ms": iso_time(row["since_ms"])} for row in rows], False, columns)
    for row in rows:
        _print_troubles(row)
    if rows and (loop := rows[0]["loop"]) is not None:
        click.echo(f"\nsince {iso_time(loop['since_ms'])} {loop['text']}")


def _print_troubles(row: Mapping[str, Any]) -> None:
    """Print what went wrong with an instance: why it does not run, at which record it failed, its last lines of output,
    its exceptions.
    """
    at, lines = row["at"], []
    where = "" if at is None else f"{at['topic']}-{at['partition']} offset {at['offset']}"
    if row["error"]:
        lines.append(row["error"] + (f" (at {where})" if where else ""))
    elif where:
        lines.append(f"calls {where}; the last call ended {iso_time(row['last_ms']) or 'never'}")
    if row["next_start_ms"]:
        lines.append(f"next start at {iso_time(row['next_start_ms'])}")
    if lines or not row["running"]:
        lines += [f"stderr: {line}" for line in row["stderr"][-STDERR_LINES:]]
    lines += [f"{iso_time(each['at_ms'])} {each['text']}" for each in row["latest_exceptions"]]
    if lines:
        click.echo(f"\ninstance {row['instance']}:")
        for line in "\n".join(lines).splitlines():
            click.echo(f"  {line}")


@click.command("stats", short_help="Show the counts of a function.")
@function_name
@instance_option
@admin_options
@json_option
def stats(worker: WorkerRest, fqfn: str, instance_id: int | None, as_json: bool) -> None:
    """Show what each instance has counted since its start, and in the last minute (1M)."""
    rows = []
    for number, given in _instances(worker, fqfn, instance_id, "stats"):
        minute = given["1min"]
        rows.append(
            {
                "instance": number,
                "received": given["receivedTotal"],
                "processed": given["processedSuccessfullyTotal"],
                "user_exceptions": given["userExceptionsTotal"],
                "system_exceptions": given["systemExceptionsTotal"],
                "average_ms": given["avgProcessLatency"],
                "received_1min": minute["receivedTotal"],
                "processed_1min": minute["processedSuccessfullyTotal"],
                "average_ms_1min": minute["avgProcessLatency"],
                "last_ms": given["lastInvocation"],
                "user_metrics": given["userMetrics"],
            }
        )
    if as_json:
        print_json(rows)
        return
    for row in rows:
        row |= {"last_ms": iso_time(row["last_ms"])}
        row |= {name: _milliseconds(row[name]) for name in ("average_ms", "average_ms_1min")}
    columns = {
        "instance": ">INSTANCE",
        "received": ">RECEIVED",
        "processed": ">PROCESSED",
        "user_exceptions": ">USER EXC.",
        "system_exceptions": ">SYSTEM EXC.",
        "average_ms": ">AVG MS",
        "received_1min": ">RECEIVED 1M",
        "processed_1min": ">PROCESSED 1M",
        "average_ms_1min": ">AVG MS 1M",
        "last_ms": "LAST",
    }
    print_rows(rows, False, columns)
    metrics = [(row["instance"], name, f"{value:g}") for row in rows for name, value in row["user_metrics"].items()]
    if metrics:
        click.echo()
        print_table([">INSTANCE", "METRIC", ">AVERAGE"], metrics)


def _instances(worker: WorkerRest, fqfn: str, instance: int | None, what: str) -> Sequence[tuple[int, dict[str, Any]]]:
    if instance is not None:
        return [(instance, worker.function("GET", fqfn, f"/{instance}/{what}").json())]
    inner = "metrics" if what == "stats" else what
    return [(each["instanceId"], each[inner]) for each in worker.function("GET", fqfn, f"/{what}").json()["instances"]]


# -- messages and state


@click.command("trigger", short_help="Send a message, and print what comes of it.")
@function_name
@click.option("--trigger-value", metavar="TEXT", help="The message.")
@click.option("--trigger-file", metavar="FILE", type=click.Path(exists=True, dir_okay=False), help="File with it.")
@click.option("--topic", metavar="TOPIC", help="Input that gets it; needed if there are several.")
@click.option("--key", metavar="TEXT", help="Its key.")
@admin_options
@json_option
def trigger(
    worker: WorkerRest,
    fqfn: str,
    trigger_value: str | None,
    trigger_file: str | None,
    topic: str | None,
    key: str | None,
    as_json: bool,
) -> None:
    """Send a message to a function, wait until it is done, and print the output; fail with its exception.

    The message is written to an input, to the partition of its key, and stays there: one that fails is tried again as
    any other.
    """
    from kop.cli.functions_rest import FormPart

    if (trigger_value is None) is (trigger_file is None):
        raise CliUsageError("give --trigger-value or --trigger-file")
    data = Path(trigger_file).read_bytes() if trigger_file is not None else (trigger_value or "").encode()
    form = {"data": FormPart(data)}
    form |= {name: FormPart(text.encode()) for name, text in (("topic", topic), ("key", key)) if text is not None}
    answer = worker.function("POST", fqfn, "/trigger", form=form)
    output = None if answer.status == 204 else answer.body
    if as_json:
        print_json(shown_bytes("output", output))
    elif output is None:
        note("the message is done; it gave no output")
    else:
        click.echo(output)


@click.command("querystate", short_help="Print a value of the state of a function.")
@function_name
@click.option("-k", "--key", metavar="KEY", required=True, help="Key of the value.")
@partition_option
@admin_options
@json_option
def query_state(worker: WorkerRest, fqfn: str, key: str, partition: int | None, as_json: bool) -> None:
    """Print a value of the state of a function: a text, a number, or base64 of bytes."""
    value = worker.function("GET", fqfn, f"/state/{quote(key, safe='')}{_of(partition)}").json()
    if as_json:
        print_json(value)
        return
    shown = [value[name] for name in ("stringValue", "numberValue", "byteValue") if value.get(name) is not None]
    click.echo(shown[0] if shown else "")


@click.command("putstate", short_help="Set a value of the state of a function.")
@function_name
@click.option(
    "-s", "--state", metavar="JSON", required=True, help="key, and stringValue, numberValue or byteValue (base64)."
)
@partition_option
@admin_options
def put_state(worker: WorkerRest, fqfn: str, state: str, partition: int | None) -> None:
    """Set a value of the state of a function."""
    from kop.cli.functions_rest import FormPart

    try:
        key = json.loads(state)["key"]
    except (ValueError, KeyError, TypeError):
        raise CliUsageError('--state must be JSON as {"key": "k", "stringValue": "v"}') from None
    path = f"/state/{quote(str(key), safe='')}{_of(partition)}"
    worker.function("POST", fqfn, path, form={"state": FormPart(state.encode())})
    click.echo(f"set {key} of {fqfn}")


def _of(partition: int | None) -> str:
    return "" if partition is None else f"?partition={partition}"


# -- files


@click.command("upload", short_help="Keep a file with the workers.")
@click.option(
    "--source-file",
    metavar="FILE",
    required=True,
    type=click.Path(exists=True, dir_okay=False),
    help="The file.",
)
@click.option("--path", metavar="PATH", required=True, help="Where it is kept.")
@admin_options
def upload(worker: WorkerRest, source_file: str, path: str) -> None:
    """Keep a file with the workers, under a path."""
    from kop.cli.functions_rest import FormPart

    source = Path(source_file)
    form = {"data": FormPart(source.read_bytes(), source.name), "path": FormPart(path.encode())}
    worker.send("POST", "/admin/v3/functions/upload", form=form)
    click.echo(f"uploaded {source_file} to {path}")


@click.command("download", short_help="Write the code of a function to a file.")
@function_name_if_any
@click.option("--path", metavar="PATH", help="What was uploaded there, instead.")
@click.option("--destination-file", metavar="FILE", required=True, type=click.Path(dir_okay=False), help="The file.")
@admin_options
def download(worker: WorkerRest, fqfn: str | None, path: str | None, destination_file: str) -> None:
    """Write the code of a function, or what was uploaded to --path, to a file."""
    if (fqfn is None) is (path is None):
        raise CliUsageError("name a function, or give --path")
    if fqfn is not None:
        answer = worker.function("GET", fqfn, "/download")
    else:
        answer = worker.send("GET", f"/admin/v3/functions/download?path={quote(path or '', safe='')}")
    Path(destination_file).write_bytes(answer.body)
    click.echo(f"wrote {destination_file}")


# -- workers


@click.command("workers", short_help="List the workers.")
@click.option("--rebalance", is_flag=True, help="Deal the instances anew.")
@click.option("--drain", metavar="WORKER", help="Give its instances to the others; none until it starts anew.")
@click.option("--undrain", metavar="WORKER", help="Let it have instances again.")
@admin_options
@json_option
def workers(worker: WorkerRest, rebalance: bool, drain: str | None, undrain: str | None, as_json: bool) -> None:
    """List the workers, who of them leads or is drained, and how many instances each has.

    A worker that is drained has none until --undrain, or until it has ended and started again. The last one that is
    not cannot be drained.
    """
    if rebalance:
        worker.send("PUT", "/admin/v2/worker/rebalance")
        note("the instances are being dealt anew")
    if drain is not None:
        worker.send("PUT", f"/admin/v2/worker/leader/drain?workerId={quote(drain, safe='')}")
        note(f"the instances of {drain} go to the others")
    if undrain is not None:
        worker.send("DELETE", f"/admin/v2/worker/leader/drain?workerId={quote(undrain, safe='')}")
        note(f"{undrain} is given instances again")
    cluster = worker.send("GET", "/admin/v2/worker/cluster").json()
    assignments = worker.send("GET", "/admin/v2/worker/assignments").json()
    leads = worker.send("GET", "/admin/v2/worker/cluster/leader", may_miss=True)
    leader = leads.json()["workerId"] if leads.status == 200 else None
    rows = [
        {
            "worker": each["workerId"],
            "address": f"{each['workerHostname']}:{each['port']}",
            "leader": each["workerId"] == leader,
            "drained": each["drained"],
            "instances": sorted(assignments.get(each["workerId"], [])),
        }
        for each in cluster
    ]
    if as_json:
        print_json(rows)
        return
    shown = [
        row | {name: name if row[name] else "" for name in ("leader", "drained")} | {"instances": len(row["instances"])}
        for row in rows
    ]
    columns = {"worker": "WORKER", "address": "ADDRESS", "leader": "LEADS", "drained": "DRAINED"}
    print_rows(shown, False, columns | {"instances": ">INSTANCES"})


def _milliseconds(value: float | None) -> str | None:
    return None if value is None else f"{value:.3g}"


COMMANDS = (
    *(workers, create, update, get, list_functions, delete, history, upload, download, status, stats, start, stop),
    *(restart, trigger, query_state, put_state),
)
