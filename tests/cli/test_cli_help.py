"""Help, versions, wrong use: what a newcomer meets first. No server."""

from __future__ import annotations

import subprocess
import sys

import click
import pytest
from cli.cli_support import Invoke, environment

import kop
from kop.cli.main import COMMANDS, cli


def commands() -> list[tuple[str, ...]]:
    """Every command and sub-command."""
    paths: list[tuple[str, ...]] = [()]
    for name in COMMANDS:
        paths.append((name,))
        command = cli.get_command(click.Context(cli), name)
        if isinstance(command, click.Group):
            paths += [(name, member) for member in command.commands]
    return paths


@pytest.mark.parametrize("command", commands(), ids=" ".join)
@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_fits_80_columns(invoke: Invoke, command: tuple[str, ...], flag: str) -> None:
    result = invoke(*command, flag, terminal_width=80)
    assert result.exit_code == 0
    assert result.output.startswith(" ".join(["Usage: kop", *command]))
    assert max(map(len, result.output.splitlines())) <= 80
    listed = result.output.partition("\nCommands:\n")[2].partition("\n\n")[0]
    assert "..." not in listed, "no text is cut off"


@pytest.mark.parametrize("command", [c for c in commands() if len(c) < 2], ids=" ".join)
def test_help_has_examples_that_name_real_commands(invoke: Invoke, command: tuple[str, ...]) -> None:
    lines = invoke(*command, "--help", terminal_width=80).output.splitlines()
    examples = [line.split() for line in lines[lines.index("  Examples:") + 1 :] if " kop " in line]
    assert examples
    for words in examples:
        after = words[words.index("kop") + 1 :]
        assert after[0] in COMMANDS


def test_help_lists_every_command_aligned(invoke: Invoke) -> None:
    lines = invoke("--help", terminal_width=80).output.splitlines()
    listed = lines[lines.index("Commands:") + 1 :][: len(COMMANDS)]
    assert [line.split()[0] for line in listed] == list(COMMANDS)
    assert len({line.index(COMMANDS[line.split()[0]]) for line in listed}) == 1


def test_version(invoke: Invoke) -> None:
    result = invoke("--version")
    assert (result.exit_code, result.output) == (0, f"kop {kop.__version__}\n")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["foo"], "No such command 'foo'"),
        (["topics", "foo"], "No such command 'foo'"),
        (["serv"], "No such command 'serv'. Did you mean 'serve'?"),
        (["serve", "--port", "9093"], "No such option '--port'. Did you mean '--listen'?"),
        (["groups", "reset"], "No such command 'reset'. Did you mean 'reset-offsets'?"),
        (["topics", "create"], "Missing argument 'NAME...'"),
        (["topics", "create", "a", "-c", "b"], "must be NAME=VALUE, got 'b'"),
        (["topics", "create", "a", "-c", "b=1", "-c", "b=2"], "b is given twice"),
        (["topics", "create", "a", "-p", "0"], "0 is not in the range x>=1"),
        (["topics", "alter", "a"], "nothing to change"),
        (["topics", "alter", "a", "-c", "b=1", "--delete-config", "b"], "b is both set and deleted"),
        (["topics", "list", "-b", "here"], "must be HOST:PORT"),
        (["topics", "list", "-b", "*:9092"], "needs a host and a port"),
        (["groups", "describe"], "give names of groups or --all"),
        (["groups", "reset-offsets", "g", "--topic", "t"], "give one of --to-earliest, --to-latest, --to-offset"),
        (["groups", "reset-offsets", "g", "--to-earliest"], "give --topic or --all-topics"),
        (["groups", "reset-offsets", "g", "--to-earliest", "--to-latest", "--all-topics"], "give one of"),
        (
            ["groups", "reset-offsets", "g", "--topic", "t", "--all-topics", "--to-latest"],
            "give --topic or --all-topics",
        ),
        (
            ["groups", "reset-offsets", "g", "--all-topics", "--by-duration", "1H"],
            "'1H' is no duration such as PT1H30M",
        ),
        (["groups", "reset-offsets", "g", "--all-topics", "--to-datetime", "soon"], "'soon' is no time such as 2026-"),
        (["transactions", "describe"], "give transactional ids or --open"),
        (["transactions", "describe", "t", "--open"], "give transactional ids or --open"),
        (["transactions", "abort"], "Missing argument 'ID...'"),
        (["transactions", "list", "--longer-than", "5m"], "'5m' is no duration such as PT1H30M"),
        (["produce"], "Missing argument 'TOPIC'"),
        (["produce", "t", "--acks", "2"], "'2' is not one of 'all', '1', '0'"),
        (["produce", "t", "-K", ""], "must not be empty"),
        (["produce", "t", "-f", "/no/such"], "No such file or directory"),
        (["consume", "t", "-B", "-o", "1"], "give one of --from-beginning, --offset, --since"),
        (["consume", "t", "-g", "g", "-o", "1"], "--group goes on where the group left"),
        (["consume", "t", "-g", "g", "--until-end"], "--group goes on where the group left"),
        (["consume", "t", "--until-end", "--to-offset", "1"], "give one of --until-end, --to-offset, --until"),
        (["consume", "t", "--json", "--format", "x"], "give one of --json, --format, --print-key"),
        (["consume", "t", "--since", "soon"], "'soon' is no time such as 2026-"),
        (["consume", "t", "--until", "PT"], "'PT' is no duration such as PT1H30M"),
        (["consume", "t", "--format", "{kye}"], "--format has no field {kye}; it has {topic}, {partition}"),
        (["produce", "t", "--json", "--null", "x"], "--json has keys and nulls of its own"),
        (["produce", "t", "--timeout", "0"], "0 is not in the range x>0"),
        (["topics", "delete-records", "t"], "give --before or --all"),
        (["groups", "describe", "g", "--all"], "give names of groups or --all"),
        (["completion", "tcsh"], "'tcsh' is not one of 'bash', 'zsh', 'fish'"),
        (["serve", "--set", "listen=a:1", "--listen", "b:1"], "--listen and --set listen=... are both given"),
        (["serve", "--set", "kop.workers=1", "--workers", "2"], "--workers and --set kop.workers=... are both given"),
        (
            ["serve", "--set", "kop.pulsar.admin.url=http://a", "--admin-url", "http://b"],
            "--admin-url and --set kop.pulsar.admin.url=... are both given",
        ),
        (["serve", "--store", "memory:", "--workers", "2"], "kop.workers (--workers) above 1 needs a store (--store)"),
        (["serve", "--set", "num.partitions"], "must be NAME=VALUE"),
        (
            ["serve", "--set", "num.partition=1"],
            "kop: unknown setting num.partition (flag); did you mean num.partitions?",
        ),
        (["serve", "--config", "/no/such"], "kop: cannot read /no/such: No such file or directory"),
    ],
)
def test_wrong_use_is_exit_code_2_with_a_reason(invoke: Invoke, arguments: list[str], text: str) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert text in result.stderr
    assert "Traceback" not in result.stderr


def test_commands_but_serve_load_nothing_of_the_server() -> None:
    """kafka-python's table of responses is global to a process: the server's classes in it would break clients."""
    code = (
        "import sys, importlib\n"
        "from kop.cli.main import COMMANDS\n"
        "for name in COMMANDS: importlib.import_module(f'kop.cli.{name}')\n"
        "print(*sorted(name for name in sys.modules if name.startswith('kop') and not name.startswith('kop.cli')))\n"
        "print(*sorted(name for name in sys.modules if name == 'kafka'))\n"
    )
    output = subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True
    ).stdout
    loaded, kafka = output.splitlines()
    rooms = {name.removeprefix("kop.").rpartition(".settings")[0] for name in loaded.split() if "settings" in name}
    assert rooms >= {"server", "groups", "storage.pulsar"}
    others = {name for name in loaded.split() if not name.endswith(".settings")}
    assert others == {
        "kop",
        "kop.address",
        "kop.clock",
        "kop.config",
        "kop.errors",
        "kop.memory_limit",
        "kop.values",
        "kop.storage",
    } | {f"kop.{room}" for room in rooms}
    assert kafka == ""
