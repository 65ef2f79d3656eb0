"""The check of a function's code before it runs anywhere: imported in a process of its own, with a limit of time.

Owns: what is looked at, what is told of a module that hangs, crashes or ends the process.
Must not know: who wants to know, topics.
"""

from __future__ import annotations

import faulthandler
import json
import os
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any, Final

from kop import clock
from kop.client.errors import ClientError
from kop.functions import forking, stand_in
from kop.functions.function import CodePlace, FunctionCode, FunctionLoadError, load_place
from kop.functions.instance import check_batches
from kop.functions.serdes import SerdeError, input_serde, output_serde
from kop.functions.spec import FunctionSpec
from kop.functions.windowing import extractor_of, of_elements

CHECK_SECONDS: Final = 20.0
_DUMP_SECONDS: Final = 2.0
"""The seconds before the time limit at which a process that hangs prints its stack."""


def check(spec: FunctionSpec, place: CodePlace, seconds: float = CHECK_SECONDS) -> list[str]:
    """Import the code of a function in a process of its own, and return its mistakes; none if it can run. A process
    that hangs or ends is a mistake, too. Returns within so many seconds, and about one more.
    """
    made = forking.context()
    answer, answering = made.Pipe(duplex=False)
    process, output = forking.start(f"kop-function-check {spec.fqfn}", _look, answering, spec, place, seconds)
    answering.close()
    tail = forking.LastLines()
    end = clock.monotonic() + seconds
    mistakes: list[str] | None = None
    channels: list[Any] = [answer, output]
    try:
        while mistakes is None and answer in channels and (left := end - clock.monotonic()) > 0:
            for ready in wait(channels, left):
                if ready is output:
                    data = os.read(output.fileno(), 1 << 16)
                    tail.add(data)
                    if not data:
                        channels.remove(output)
                    continue
                try:
                    mistakes = json.loads(answer.recv_bytes())
                except EOFError:
                    channels.remove(answer)
        while mistakes is None and output in channels and wait([output], 0.1):
            data = os.read(output.fileno(), 1 << 16)
            if not data or len(data) > 1 << 20:
                break
            tail.add(data)
    finally:
        hangs = clock.monotonic() >= end
        if not hangs:
            process.join(1)
        forking.kill(process)
        process.join()
        code = process.exitcode
        process.close()
        for channel in (answer, output):
            channel.close()
    if mistakes is None:
        why = (
            f"its import has not ended within {seconds:g} s"
            if hangs
            else f"while it was imported, {forking.ended(code)}"
        )
        mistakes = ["\n".join([why, *tail.lines])]
    return [_shortened(mistake, place) for mistake in mistakes]


def _shortened(text: str, place: CodePlace) -> str:
    """Return a text without the folder that the code was unpacked into."""
    for path in (os.path.dirname(place.py), *place.folders):
        if path:
            text = text.replace(f"{path}{os.sep}", "")
    return text


def _needs(spec: FunctionSpec, code: FunctionCode) -> list[Callable[[], object]]:
    """Return functions that make, from the code, the parts that an instance needs at its start; each raises if its part
    cannot be made.
    """
    if code.is_batch:
        return [lambda: check_batches(spec)]
    of_messages = of_elements(code) if spec.window else code
    inputs = [partial(input_serde, spec, name, of_messages) for name in spec.inputs]
    return [*inputs, lambda: output_serde(spec, code), lambda: extractor_of(spec, code)]


def _look(answering: Connection, spec: FunctionSpec, place: CodePlace, seconds: float) -> None:
    faulthandler.dump_traceback_later(max(_DUMP_SECONDS, seconds - _DUMP_SECONDS))
    stand_in.install()
    mistakes: list[str] = []
    try:
        code = load_place(place, spec.class_name)
    except FunctionLoadError as error:
        mistakes.append(str(error))
    else:
        for needed in _needs(spec, code):
            try:
                needed()
            except (SerdeError, FunctionLoadError, ClientError) as error:
                mistakes.append(str(error))
    answering.send_bytes(json.dumps(list(dict.fromkeys(mistakes))).encode())
    os._exit(0)  # threads that the module has begun do not hold it up
