"""The requests of `benchmarks.fuzz_page`: Hypothesis strategies for calls, whole or broken.

A request is bytes with marks in them, `@TOKEN@` for example, which are filled in when it is sent,
`@LENGTH@` last: so the same request has the same meaning at every store.
"""

import json
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

PEOPLE = ("ana", "ben", "lea")
"""Two annotators and a lead; everybody else is a stranger."""
PATHS = (
    "/api/judgments",
    "/api/task",
    "/api/undo",
    "/api/login",
    "/api/logout",
    "/api/lead/person",
    "/api/lead/export?round=r1",
    "/api/lead/publish?round=r1",
    "/",
    "/login",
    "/lead",
    "/health",
    "/static/annotate.js",
    "/static/style.css",
)


@dataclass(frozen=True, slots=True)
class Request:
    """What one connection sends."""

    who: str
    """Whose token, session and assignment the marks stand for."""
    content: bytes
    cuts: tuple[int, ...] = ()
    """Where the bytes are cut into pieces that are sent one by one."""


_ODD_TEXTS = (
    "",
    " ",
    "\x00",
    "\u202e",
    "\u200b",
    "\ud800",
    "\ufeff",
    "a" * 2001,
    "\U0001d4b3" * 600,
    "nan",
    "-1",
    "../../x",
    "'; DROP TABLE labels; --",
    "<script>",
    "{{7*7}}",
    "%00",
)
_texts = st.sampled_from(_ODD_TEXTS) | st.text(max_size=20)
_numbers = st.integers() | st.floats() | st.sampled_from((2**63, -(2**63), 10**400, 1e308, -0.0))
_values = st.recursive(
    st.none() | st.booleans() | _numbers | _texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_texts, inner, max_size=3),
    max_leaves=6,
)
_keys = st.sampled_from(("key-00001", "key-00002", "key-00003", "key-00004"))


def _mostly(usual: st.SearchStrategy[Any], odd: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Four times of five the usual."""
    return st.integers(0, 4).flatmap(lambda n: usual if n else odd)


_judgments = st.fixed_dictionaries(
    {
        "assignment_id": _mostly(st.just("@ASSIGNMENT@"), _values),
        "choice": _mostly(st.sampled_from(("left", "right", "tie", "both_bad", "skip")), _values),
        "key": _mostly(_keys, _values),
    },
    optional={
        "strength": _mostly(st.integers(1, 4), _values),
        "reason": _mostly(st.text(max_size=30), _values),
        "visible_ms": _mostly(st.integers(0, 10**8), _values),
    },
)
_logins = st.fixed_dictionaries({"token": _mostly(st.just("@TOKEN@"), _values)})
_undos = st.fixed_dictionaries({"key": _mostly(_keys, _values)})
_changes = st.fixed_dictionaries(
    {
        "annotator_id": _mostly(st.sampled_from(("@ANA@", "@BEN@", "@LEA@")), _values),
        "paused": _mostly(st.booleans(), _values),
    }
)
_BODIES = {
    "/api/judgments": _judgments,
    "/api/login": _logins,
    "/api/undo": _undos,
    "/api/lead/person": _changes,
}


def _encoded(value: object) -> bytes:
    # As `json` does by default: NaN and half surrogate pairs too.
    return json.dumps(value).encode()


_HEADER_NAMES = (
    "Content-Type",
    "Content-Length",
    "Transfer-Encoding",
    "Host",
    "Origin",
    "Connection",
    "Upgrade",
    "Expect",
    "Cookie",
    "Authorization",
    "X-CSRF-Token",
    "X-Forwarded-For",
    "X-Forwarded-Proto",
    "X-Forwarded-Host",
    "X-Forwarded-User",
    "Forwarded",
    "Range",
    "If-None-Match",
    "If-Modified-Since",
    "Accept-Encoding",
    "Referer",
    "X-HTTP-Method-Override",
)
_HEADER_VALUES = (
    b"",
    b"0",
    b"-1",
    b"1e3",
    b"99999999999999999999",
    b"chunked",
    b"gzip, chunked",
    b"close",
    b"upgrade",
    b"websocket",
    b"100-continue",
    b"application/json",
    b"text/plain",
    b"multipart/form-data; boundary=x",
    b"application/json; charset=utf-16",
    b"localhost",
    b"[::1",
    b"evil.example",
    b"null",
    b"Bearer",
    b"Bearer @TOKEN@",
    b"Bearer \xff\xfe",
    b"Basic YTpi",
    b"feedback_session=@SESSION@",
    b'feedback_session="\\"; x=\xff',
    b"bytes=0-",
    b"bytes=5-2,-1,99999999999999999999-",
    b"127.0.0.1",
    b"127.0.0.1, 10.0.0.1, x",
    b"[::1]:80",
    b"https",
    b"@NAME@",
)
_header = st.tuples(
    st.sampled_from([name.encode() for name in _HEADER_NAMES]) | st.binary(max_size=12),
    st.sampled_from(_HEADER_VALUES) | st.binary(max_size=40),
)
_paths = st.sampled_from([path.encode() for path in PATHS]) | st.builds(
    lambda path, more: path.encode() + more, st.sampled_from(PATHS), st.binary(max_size=12)
)
_methods = _mostly(
    st.sampled_from((b"GET", b"POST")),
    st.sampled_from((b"HEAD", b"PUT", b"DELETE", b"OPTIONS", b"TRACE", b"get"))
    | st.binary(max_size=6),
)


def _wrapped(
    method: bytes, path: bytes, headers: list[tuple[bytes, bytes]], body: bytes, signed: str
) -> bytes:
    """A request with what a client adds, unless a header of this name is given."""
    given = {name.lower() for name, _ in headers}
    usual = [(b"Host", b"127.0.0.1"), (b"Content-Type", b"application/json")]
    usual += [(b"Content-Length", b"@LENGTH@")] if body or method == b"POST" else []
    usual += {
        "token": [(b"Authorization", b"Bearer @TOKEN@")],
        "session": [(b"Cookie", b"feedback_session=@SESSION@"), (b"X-CSRF-Token", b"@CSRF@")],
        "nothing": [],
    }[signed]
    if b"transfer-encoding" in given:
        body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    lines = [one for one in usual if one[0].lower() not in given] + headers
    head = b"".join(b"%s: %s\r\n" % one for one in lines)
    return b"%s %s HTTP/1.1\r\n%s\r\n%s" % (method, path, head, body)


_signed = st.sampled_from(("token", "session", "session", "nothing"))


def _bodies(path: str) -> st.SearchStrategy[bytes]:
    usual = _BODIES.get(path, st.just({})).map(_encoded)
    return _mostly(usual, _values.map(_encoded) | st.binary(max_size=60))


_calls = st.sampled_from(PATHS[:8] + PATHS[:3] * 2).flatmap(
    lambda path: st.builds(
        _wrapped, st.just(b"POST"), st.just(path.encode()), st.just([]), _bodies(path), _signed
    )
)
"""Calls as the page makes them, with odd values in some."""
_odd_calls = st.builds(
    _wrapped,
    _methods,
    _paths,
    st.lists(_header, max_size=4),
    st.binary(max_size=80) | st.sampled_from([b" " * 65_537, b"[" * 30_000, b"\xff" * 9]),
    _signed,
)


@st.composite
def _damaged(draw: st.DrawFn) -> bytes:
    """A call with bytes replaced, removed, put in or repeated."""
    content = draw(_calls | _odd_calls)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(content)))
        until = min(len(content), at + draw(st.integers(0, 12)))
        content = content[:at] + draw(st.binary(max_size=6)) + content[until:]
    return content


contents = st.one_of(_calls, _calls, _calls, _odd_calls, _damaged(), st.binary(max_size=200))
"""Bytes of one connection: half of them are calls."""
requests = st.builds(
    Request,
    st.sampled_from(PEOPLE),
    contents,
    _mostly(
        st.just(()), st.lists(st.integers(0, 400), max_size=2).map(lambda at: tuple(sorted(at)))
    ),
)
volleys = st.lists(st.lists(requests, min_size=1, max_size=3), min_size=1, max_size=8)
"""What one example sends: volleys one after the other, the requests of each at once."""
