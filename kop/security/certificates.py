"""The parts that are read of X.509 certificates: who a certificate is for, and from when until when it holds.

Owns: the parts of a certificate's DER that are wanted; the subject's text as Java's `X500Principal.getName()` prints it
(RFC 2253), by which Kafka's users are named.
Must not know: who trusts a certificate; signatures (OpenSSL checks them before anything is read here).

Java's text differs from what most libraries print: it knows nine attributes by name and has all others as hex, it
escapes `=` and `#` anywhere, and each space at an end.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

_SEQUENCE: Final = 0x30
_SET: Final = 0x31
_OID: Final = 0x06
_VERSION: Final = 0xA0
_UTC_TIME: Final = 0x17
_TEXTS: Final = frozenset({0x0C, 0x13, 0x14, 0x16, 0x1B, 0x1E})
"""UTF8String, PrintableString, T61String, IA5String, GeneralString, BMPString: those that Java prints as text."""
_NAMES: Final = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
_ESCAPED: Final = re.compile(r'[,=+<>#;"\\]')
_BLOCK: Final = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
DAY_SECONDS: Final = 86_400


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate."""

    subject: str
    begins: float
    """The time from which on it holds, in seconds since the epoch."""
    ends: float

    def days_left(self, now: float) -> float:
        """Return the days for which it still holds at `now`, in seconds since the epoch; less than 0 once it has
        expired.
        """
        return (self.ends - now) / DAY_SECONDS


def of_der(der: bytes) -> Certificate:
    """Read a certificate in DER. ValueError if the bytes are no certificate."""
    try:
        return _of_der(der)
    except IndexError:
        raise ValueError("the certificate is cut off") from None


def of_pem(text: str) -> list[Certificate]:
    """Read the certificates of a text in PEM, in their order. ValueError if one of its parts is no certificate."""
    return [of_der(ssl.PEM_cert_to_DER_cert(block)) for block in _BLOCK.findall(text)]


def _of_der(der: bytes) -> Certificate:
    (_, whole, _), *_ = _elements(der)
    (_, signed, _), *_ = _elements(whole)
    parts = list(_elements(signed))
    if parts[0][0] == _VERSION:
        del parts[0]
    # Serial number, algorithm, issuer, validity, subject.
    times = [_time(tag, content) for tag, content, _ in _elements(parts[3][1])]
    return Certificate(_text(parts[4][1]), times[0], times[1])


def _elements(data: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield tag, content and whole bytes of each element in DER that `data` consists of. ValueError or IndexError if
    they are cut off or no DER.
    """
    at = 0
    while at < len(data):
        tag, size, begin = data[at], data[at + 1], at + 2
        if size >= 0x80:
            count = size & 0x7F
            if not 1 <= count <= 4:
                raise ValueError("the certificate is not DER")
            size = int.from_bytes(data[begin : begin + count], "big")
            begin += count
        end = begin + size
        if end > len(data):
            raise ValueError("the certificate is cut off")
        yield tag, data[begin:end], data[at:end]
        at = end


def _time(tag: int, content: bytes) -> float:
    text = content.decode("ascii")
    if tag == _UTC_TIME:
        text = ("19" if text[:2] >= "50" else "20") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()


def _text(name: bytes) -> str:
    """Return the text of a Name in DER as Java prints it, its last part first. ValueError if it cannot be read."""
    parts = ["+".join(map(_attribute, _contents(content, _SEQUENCE))) for content in _contents(name, _SET)]
    return ",".join(reversed(parts))


def _contents(data: bytes, wanted: int) -> Iterator[bytes]:
    for tag, content, _ in _elements(data):
        if tag != wanted:
            raise ValueError("the certificate has no subject that can be read")
        yield content


def _attribute(data: bytes) -> str:
    (oid_tag, oid, _), (tag, content, whole) = _elements(data)
    if oid_tag != _OID:
        raise ValueError("the certificate has no subject that can be read")
    dotted = _dotted(oid)
    name = _NAMES.get(dotted)
    if name is not None and tag in _TEXTS:
        try:
            return f"{name}={_escaped(content.decode())}"
        except UnicodeDecodeError:
            pass  # Java prints marks that stand for anything; hex stands for this value alone
    return f"{name or dotted}=#{whole.hex()}"


def _escaped(value: str) -> str:
    escaped = _ESCAPED.sub(r"\\\g<0>", value).replace("\0", "\\00")
    inner = escaped.strip(" ")
    if not inner:
        return "\\ " * len(escaped)
    before, after = len(escaped) - len(escaped.lstrip(" ")), len(escaped) - len(escaped.rstrip(" "))
    return "\\ " * before + inner + "\\ " * after


def _dotted(oid: bytes) -> str:
    numbers, value = [], 0
    for byte in oid:
        value = value << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(value)
            value = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))
