"""Names of clients with certificates: the text of a subject as Java prints it, and Kafka's rules over that."""

from __future__ import annotations

import time

import pytest

from kop.security.certificates import of_der
from kop.security.principal import LONGEST_SUBJECT, MappingRules

# -- subjects


def element(tag: int, *contents: bytes) -> bytes:
    content = b"".join(contents)
    size = len(content)
    return bytes([tag, size]) + content if size < 128 else bytes([tag, 0x82]) + size.to_bytes(2, "big") + content


def certificate(subject: bytes, begins: bytes = b"260101000000Z", ends: bytes = b"260131000000Z") -> bytes:
    """As much of a certificate as is read."""
    times = [element(0x17 if len(time) == 13 else 0x18, time) for time in (begins, ends)]
    version = element(0xA0, element(2, b"\2"))
    signed = element(0x30, version, element(2, b"\1"), element(0x30), element(0x30), element(0x30, *times), subject)
    return element(0x30, signed, element(0x30), element(3, b"\0"))


SUBJECTS = [
    (
        "303c310b3009060355040613024445310d300b060355040a0c0461636d65310e300c060355040b0c057465616d41310e300c06035504030c056361726f6c",
        "CN=carol,OU=teamA,O=acme,C=DE",
    ),
    ("301e311c301a06035504030c13612c622b6322645c653c663e673b683d69236a", 'CN=a\\,b\\+c\\"d\\\\e\\<f\\>g\\;h\\=i\\#j'),
    ("3011310f300d06035504030c06207820792020", "CN=\\ x y\\ \\ "),
    ("300d310b300906035504030c022378", "CN=\\#x"),
    ("300d310b300906035504030c022020", "CN=\\ \\ "),
    ("301e311c301a06035504030c134ac3bc7267656e20c384c39620e6bca2e5ad97", "CN=Jürgen ÄÖ 漢字"),
    (
        "30223114301206092a864886f70d01090116056140622e63310a300806035504030c0178",
        "CN=x,1.2.840.113549.1.9.1=#16056140622e63",
    ),
    ("301a310c300a06035504051303313233310a300806035504030c0178", "CN=x,2.5.4.5=#1303313233"),
    (
        "3055310b3009060355040c0c024472310a300806035504040c0153310a3008060355042a0c0147310a300806035504030c0178310a3008060355042e130171310a300806035504410c0171310a3008060355042c0c0171",
        "2.5.4.44=#0c0171,2.5.4.65=#0c0171,2.5.4.46=#130171,CN=x,2.5.4.42=#0c0147,2.5.4.4=#0c0153,2.5.4.12=#0c024472",
    ),
    (
        "304d3111300f060a0992268993f22c6401010c017531133011060a0992268993f22c6401191603636f6d310b300906035504090c027374310a300806035504070c016c310a300806035504080c0173",
        "ST=s,L=l,STREET=st,DC=com,UID=u",
    ),
    ("30163114300806035504030c01623008060355040b0c0161", "CN=b+OU=a"),
    (
        "30343125300806035504030c01623008060355040b0c0161300f060a0992268993f22c6401010c0163310b3009060355040613024445",
        "C=DE,CN=b+OU=a+UID=c",
    ),
    ("3010310e300c06035504030c05780a790d7a", "CN=x\ny\rz"),
    ("300e310c300a06035504030c03780079", "CN=x\\00y"),
    ("300e310c300a06035504031403543631", "CN=T61"),
    (
        "30233121301f06035504031c18000000750000006e000000690000007600000020000000fc",
        "CN=#1c18000000750000006e000000690000007600000020000000fc",
    ),
    ("300e310c300a06035504031603696135", "CN=ia5"),
    ("300e310c300a060355040312036e756d", "CN=#12036e756d"),
    ("300e310c300a06035504031a03766973", "CN=#1a03766973"),
    ("300f310d300b060355042d030400616263", "2.5.4.45=#030400616263"),
    ("300e310c300a06032a03040c036f6464", "1.2.3.4=#0c036f6464"),
    ("3000", ""),
    (
        "30383136303406035504030c2d6120622a632764286529663a673f682f69406a5f6b216c246d256e266f7e707c715e7260737b747d755b765d77",
        "CN=a b*c'd(e)f:g?h/i@j_k!l$m%n&o~p|q^r`s{t}u[v]w",
    ),
    ("30183116301406035504030c0d7461620964656c7f2063746c01", "CN=tab\tdel\x7f ctl\x01"),
    ("301a3118301606035504030c0f65cc81206e627370c2a020656e6420", "CN=é nbsp\xa0 end\\ "),
]
"""Names in DER, and what `X500Principal.getName()` of Java 17 prints of them."""


@pytest.mark.parametrize(("der", "text"), SUBJECTS, ids=range(len(SUBJECTS)))
def test_a_subject_reads_as_java_prints_it(der: str, text: str) -> None:
    assert of_der(certificate(bytes.fromhex(der))).subject == text


def test_a_text_that_is_not_utf_8_is_told_from_any_other() -> None:
    """Java prints one mark for all of them."""
    of_latin = [
        element(0x30, element(0x31, element(0x30, element(6, b"\x55\4\3"), element(0x14, text))))
        for text in (b"J\xfcrgen", b"J\xe4rgen")
    ]
    subjects = [of_der(certificate(each)).subject for each in of_latin]
    assert subjects == ["CN=#14064afc7267656e", "CN=#14064ae47267656e"]


def test_a_certificate_tells_its_time() -> None:
    read = of_der(certificate(element(0x30), b"991231235959Z", b"20500101000000Z"))
    assert read.begins == 946684799
    assert read.days_left(2524608000 - 86400 * 1.5) == 1.5


@pytest.mark.parametrize("cut", [0, 1, 5, 30])
def test_what_is_no_certificate_is_an_error(cut: int) -> None:
    whole = certificate(element(0x30))
    with pytest.raises(ValueError):  # noqa: PT011
        of_der(whole[:cut])
    with pytest.raises(ValueError, match="not DER"):
        of_der(b"\x30\x80" + whole)


# -- rules, with what `SslPrincipalMapper` of Apache Kafka 4.3.1 says


CAROL = "CN=Carol,OU=teamA,O=acme,C=DE"


@pytest.mark.parametrize(
    ("rules", "subject", "name"),
    [
        ("DEFAULT", CAROL, CAROL),
        ("RULE:^CN=(.*?),OU=(.*?),O=(.*?),C=(.*?)$/$1@$2/L", CAROL, "carol@teama"),
        ("RULE:^CN=(.*?),.*$/$1/U", "CN=ab,C=DE", "AB"),
        (
            r"RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L , RULE:^CN=(.*?),OU=(\w+),O=(\w+),C=.*$/$1@$2/L,DEFAULT",
            CAROL,
            "carol@teama",
        ),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L", "CN=other", None),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L,DEFAULT", "CN=other", "CN=other"),
        ("RULE:(.*)/x/", "abc", "xx"),
        ("RULE:^(.*)$/$1$2$12/", "abc", "abc$2abc2"),
        ("RULE:^(.)(.)(.*)$/$3$10$0/", "abcd", "cda0abcd"),
        (r"RULE:^cn=(\w+)$/\$1-$1-\//", "cn=x", "$1-x-/"),
        (",,DEFAULT", "a", "a"),
        ("RULE:^a$/b/, DEFAULT ,", "zz", "zz"),
        ("RULE:^a,b$/c/", "a,b", "c"),
        ("RULE:^(b)?a$/[$1]/", "a", "[]"),
        (r"RULE:^CN=(.*)\/x$/$1/", "CN=q/x", "q"),
        ("RULE:^a$//", "a", ""),
        ("RULE:^(Ä)$/$1/L", "Ä", "ä"),
        ("RULE:^(a)$/$00/", "a", "a"),
        ("RULE:^(a)$/$01/", "a", "a"),
        (r"RULE:^a$/b\\/", "a", "b\\"),
        ("RULE:a/b/", "aa", None),
        (r"RULE:(?i)CN=A\z/y/", "cn=a", "y"),
        (r"RULE:^CN=([^,\]\[]++)(?:,|$)(?>.*)/$1/", "CN=a,b", "a"),
        (r"RULE:\w+/x/", "ä", None),
    ],
)
def test_rules_map_as_kafkas_do(rules: str, subject: str, name: str | None) -> None:
    assert MappingRules(rules).name(subject) == name


def test_a_subject_that_is_made_to_take_long_does_not() -> None:
    rules = MappingRules("RULE:^CN=(.*?),OU=(.*?),O=(.*?),C=(.*?)$/$1@$2/L")
    for size in (LONGEST_SUBJECT, 100 * LONGEST_SUBJECT):
        began = time.thread_time()
        assert rules.name(("CN=" + ",OU=,O=" * size)[:size]) is None
        assert time.thread_time() - began < 0.5


@pytest.mark.parametrize(
    "pattern",
    [
        "(a+)+b",
        "(a*)*b",
        "((a+))*b",
        "(?:a|aa)+b",
        "(?:x(a|aa))+b",
        "(aa?)+b",
        "(?:a{1,2}){2,}b",
        "(?:a{1,2}){20}b",
        "(?i)^CN=((?:[a-z]+)*),.*$",
        "(?=(a+)+b).*",
        r"(\w+\s?)*b",
    ],
)
def test_repetitions_of_what_can_be_read_in_many_ways_are_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"a repetition in a repetition.*\(\?>"):
        MappingRules(f"RULE:{pattern}/$0/")


@pytest.mark.parametrize(
    ("pattern", "subject"),
    [
        ("(a+)?(?:b|c){0,1}d*", "aabd"),
        ("(?:ab{2}c){2}", "abbcabbc"),
        (r"((?>[a-z]+)\.)*[a-z]+", "a.bc.d"),
        (r"(?:[a-z]++\.)*+x", "a.bc.x"),
        (r"(?:[+*?|(]a\+\*)*", "+a+*|a+*"),
        ("(?:ab)+?c", "ababc"),
        ("(?>(?:ab))(?:c|d)(?:ef)+", "abcef"),
    ],
)
def test_other_repetitions_are_taken(pattern: str, subject: str) -> None:
    assert MappingRules(f"RULE:{pattern}/x/").name(subject) is not None


@pytest.mark.parametrize("subject", ["CN=a\nb", "CN=a\u2028b", "CN=" + "x" * LONGEST_SUBJECT])
def test_patterns_are_not_tried_on_odd_subjects(subject: str) -> None:
    assert MappingRules(r"RULE:[\s\S]*/admin/").name(subject) is None
    assert MappingRules(r"RULE:[\s\S]*/admin/,DEFAULT").name(subject) == subject


@pytest.mark.parametrize(
    ("rules", "why"),
    [
        ("", "has no rule"),
        (" , ", "has no rule"),
        ("FOO", "begins neither with RULE:"),
        ("DEFAULTX", "'X' behind a rule"),
        ("default", "begins neither"),
        ("rule:^a$/b/", "begins neither"),
        ("RULE:^a$/b/X", "'X' behind a rule"),
        ("RULE:^a$/b/LU", "'U' behind a rule"),
        ("RULE:^a$/b/L DEFAULT", "'DEFAULT' behind a rule"),
        ("RULE://x/", "'x/' behind a rule"),
        ("RULE:^a", "is not RULE:PATTERN/REPLACEMENT/"),
        (r"RULE:^a$/\/", "is not RULE:PATTERN/REPLACEMENT/"),
        ("RULE:^a/$1/", "number of a group"),
        ("RULE:^(a)$/${n}/", "number of a group"),
        ("RULE:^(a)$/$x/", "number of a group"),
        ("RULE:^(a)$/b$/", "number of a group"),
        ("RULE:(?<n>a)/$1/", "(?<n, which is not there: groups are $1"),
        (r"RULE:\Qa\E/b/", r"\Q, which is not there"),
        (r"RULE:\p{Lu}/b/", r"\p, which is not there"),
        (r"RULE:a\Z/b/", r"\Z, which is not there"),
        (r"RULE:\k<n>/b/", r"\k"),
        (r"RULE:(a)\12/b/", r"\1, which is not there"),
        ("RULE:a(?u)b/b/", "(?u"),
        ("RULE:^(?i)x/y/", "(?i)"),
        ("RULE:[a&&b]/b/", "&& within a class"),
        ("RULE:[a[b]]/b/", "[ within a class"),
        ("RULE:[]a]/b/", "a class without members"),
        ("RULE:[a/b/", "a class without members"),
        (r"RULE:[\b]/b/", r"\b, which is not there"),
        ("RULE:a{,2}/b/", "{ that is no quantifier"),
        ("RULE:(a/b/", "cannot be read"),
        ("RULE:a**/b/", "cannot be read"),
        ("RULE:(?<=a+)b/b/", "cannot be read"),
    ],
)
def test_rules_that_python_cannot_keep_are_named(rules: str, why: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        MappingRules(rules)
    assert why in str(caught.value)
