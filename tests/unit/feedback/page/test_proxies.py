"""Behind a proxy: what its headers say counts, what anybody else's say does not."""

from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient
from starlette.datastructures import Headers

from feedback.page.guesses import FREE
from feedback.page.proxies import Proxies, ProxyError
from feedback.page.server import ServerParams, create_app
from feedback.store import accounts

PROXY = "10.0.0.5"
TLS = {"X-Forwarded-Proto": "https", "X-Forwarded-For": "203.0.113.7"}
ANA = TLS | {"X-Forwarded-User": "ana"}


def open_page(desk: Any, proxies: Proxies, peer: str = PROXY) -> TestClient:
    params = ServerParams(hosts=("label.example",), proxies=proxies)
    app = create_app(desk.database, params)
    return TestClient(app, base_url="https://label.example", client=(peer, 40000))


@pytest.fixture
def client(desk: Any, make_pairs: Any) -> Iterator[TestClient]:
    desk.publish(make_pairs(3))
    desk.hire("ana")
    with open_page(desk, Proxies.of([PROXY, "10.0.1.0/24"], "X-Forwarded-User")) as opened:
        yield opened


def token(desk: Any, name: str = "ana") -> str:
    with desk.database.writing() as connection:
        return accounts.new_token(connection, name)


def csrf_in(page: str) -> str:
    return page.split('name="csrf" content="')[1].split('"')[0]


@pytest.mark.parametrize(
    ("forwarded", "client"),
    [
        (["203.0.113.7"], "203.0.113.7"),
        # What the person's machine wrote stands before what the proxy added.
        (["127.0.0.1, 203.0.113.7"], "203.0.113.7"),
        (["8.8.8.8", "203.0.113.7"], "203.0.113.7"),
        (["203.0.113.7, 10.0.1.9"], "203.0.113.7"),
        (["2001:db8::1"], "2001:db8::1"),
        (["10.0.1.9, 10.0.0.5"], "10.0.1.9"),
    ],
)
def test_the_address_is_the_last_that_is_no_proxy(forwarded: list[str], client: str) -> None:
    proxies = Proxies.of([PROXY, "10.0.1.0/24"])
    raw = [(b"x-forwarded-for", one.encode()) for one in forwarded]
    headers = Headers(raw=[(b"x-forwarded-proto", b"https"), *raw])
    assert proxies.client(PROXY, headers) == client
    assert proxies.client(f"::ffff:{PROXY}", headers) == client


@pytest.mark.parametrize("forwarded", ["", "x", "203.0.113.7, x", "x, 10.0.0.5", "1.2.3.4:80"])
def test_a_proxy_that_names_no_address_is_refused(forwarded: str) -> None:
    headers = Headers({"X-Forwarded-Proto": "https", "X-Forwarded-For": forwarded})
    with pytest.raises(ProxyError):
        Proxies.of([PROXY]).client(PROXY, headers)


def test_without_a_named_proxy_forwarded_addresses_are_nothing() -> None:
    assert Proxies.of([]).client("198.51.100.1", Headers(TLS)) == "198.51.100.1"


@pytest.mark.parametrize(
    ("named", "header", "message"),
    [
        (["proxy.example"], None, "--behind-proxy: 'proxy.example' does not appear"),
        (["10.0.0.5/24"], None, "--behind-proxy: 10.0.0.5/24 has host bits set"),
        ([], "X-Forwarded-User", "believed of a proxy only"),
    ],
)
def test_what_names_no_proxy_is_one_sentence(
    named: list[str], header: str | None, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Proxies.of(named, header)


@pytest.mark.parametrize("peer", ["10.0.0.6", "127.0.0.1", "203.0.113.7", "::1", "nowhere"])
def test_who_goes_round_the_proxy_is_refused(desk: Any, peer: str) -> None:
    desk.hire("ana")
    with open_page(desk, Proxies.of([PROXY], "X-Forwarded-User"), peer) as opened:
        for path in ("/", "/login", "/health", "/static/style.css"):
            answer = opened.get(path, headers=ANA, follow_redirects=False)
            assert (answer.status_code, answer.text) == (403, "open this page by its proxy")
        headers = ANA | {"Authorization": f"Bearer {token(desk)}"}
        assert opened.post("/api/task", headers=headers).status_code == 403


@pytest.mark.parametrize("proto", [None, "http", "https, http"])
def test_who_comes_to_the_proxy_without_tls_is_refused(
    client: TestClient, desk: Any, proto: str | None
) -> None:
    headers = {"X-Forwarded-For": "203.0.113.7"} | (
        {"X-Forwarded-Proto": proto} if proto is not None else {}
    )
    answer = client.post("/api/login", headers=headers, json={"token": token(desk)})
    assert answer.status_code == 400
    assert "set-cookie" not in answer.headers


def test_a_second_word_on_tls_is_not_the_proxys() -> None:
    said = [(b"x-forwarded-proto", one) for one in (b"http", b"https")]
    headers = Headers(raw=[*said, (b"x-forwarded-for", b"203.0.113.7")])
    with pytest.raises(ProxyError, match="expected X-Forwarded-Proto: https"):
        Proxies.of([PROXY]).client(PROXY, headers)


def test_whom_the_proxy_gives_no_name_is_nobody() -> None:
    proxies = Proxies.of([PROXY], "X-Forwarded-User")
    assert proxies.signed_in(Headers({"X-Forwarded-User": ""})) is None


def test_a_cookie_goes_over_tls_only(client: TestClient, desk: Any) -> None:
    answer = client.post("/api/login", headers=TLS, json={"token": token(desk)})
    assert answer.status_code == 200
    assert "; secure" in answer.headers["set-cookie"].lower()
    csrf = csrf_in(client.get("/", headers=TLS).text)
    answer = client.post("/api/logout", headers=TLS | {"X-CSRF-Token": csrf})
    assert "; secure" in answer.headers["set-cookie"].lower()


def test_a_page_in_clear_under_the_same_name_is_another_site(client: TestClient, desk: Any) -> None:
    for origin, status in (("http://label.example", 403), ("https://label.example", 200)):
        headers = TLS | {"Origin": origin}
        answer = client.post("/api/login", headers=headers, json={"token": token(desk)})
        assert answer.status_code == status


def test_guesses_count_for_the_forwarded_address(client: TestClient) -> None:
    for _ in range(FREE + 1):
        last = client.post("/api/login", headers=TLS, json={"token": "guess"})
    assert last.status_code == 429
    other = TLS | {"X-Forwarded-For": "203.0.113.8"}
    assert client.post("/api/login", headers=other, json={"token": "guess"}).status_code == 401
    # An address that the guesser writes does not help.
    forged = TLS | {"X-Forwarded-For": "203.0.113.9, 203.0.113.7"}
    assert client.post("/api/login", headers=forged, json={"token": "guess"}).status_code == 429


def test_whom_the_proxy_has_signed_in_labels(client: TestClient, desk: Any) -> None:
    page = client.get("/", headers=ANA, follow_redirects=False)
    assert page.status_code == 200
    headers = ANA | {"X-CSRF-Token": csrf_in(page.text)}
    view = client.post("/api/task", headers=headers).json()
    assert view["state"] == "pair"
    body = {"assignment_id": view["task"]["assignment_id"], "choice": "tie", "key": "key-0001"}
    assert client.post("/api/judgments", headers=headers, json=body).status_code == 200
    assert desk.sql("SELECT annotator_id FROM labels") == [("ana",)]
    # The overview is for leads, and who is signed in already is not asked to.
    assert client.get("/lead", headers=ANA, follow_redirects=False).status_code == 303
    answer = client.get("/login", headers=ANA, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/")


@pytest.mark.parametrize("sent", [None, "", "x", "0" * 64])
def test_another_site_cannot_use_the_sign_in_of_a_proxy(
    client: TestClient, sent: str | None
) -> None:
    # The proxy signs in whatever the browser sends, a page of another site's request too.
    headers = ANA | ({"X-CSRF-Token": sent} if sent is not None else {})
    assert client.post("/api/task", headers=headers).status_code == 403


def test_the_token_of_one_persons_page_is_none_of_anothers(client: TestClient, desk: Any) -> None:
    desk.hire("ben")
    of_ana = csrf_in(client.get("/", headers=ANA).text)
    as_ben = ANA | {"X-Forwarded-User": "ben", "X-CSRF-Token": of_ana}
    assert client.post("/api/task", headers=as_ben).status_code == 403


@pytest.mark.parametrize("name", ["zoe", "llama", "ANA", "a\x00b"])
def test_a_name_that_was_not_let_in_is_refused(client: TestClient, desk: Any, name: str) -> None:
    # An imported annotator has a name, and is nobody who may sign in.
    row = "'llama', 'source', 'llm', 'hash-of-nothing', 0, 0"
    columns = "annotator_id, role, kind, token_hash, created_ms, judged_from_label"
    desk.sql(f"INSERT INTO annotators ({columns}) VALUES ({row})")
    answer = client.get("/", headers=ANA | {"X-Forwarded-User": name}, follow_redirects=False)
    assert answer.status_code == 403
    assert "python -m feedback token" in answer.text


def test_whose_token_has_expired_is_no_longer_let_in(client: TestClient, desk: Any) -> None:
    csrf = csrf_in(client.get("/", headers=ANA).text)
    desk.sql("UPDATE annotators SET token_expires_ms = 1700000000000")
    for answer in (
        client.get("/", headers=ANA, follow_redirects=False),
        client.post("/api/task", headers=ANA | {"X-CSRF-Token": csrf}),
    ):
        # 1,700,000,000 s after the epoch.
        assert (answer.status_code, answer.json()["detail"]) == (
            403,
            "your token expired on 2023-11-14; ask for a new one",
        )
    token(desk)
    assert client.get("/", headers=ANA, follow_redirects=False).status_code == 200


def test_two_names_are_none(client: TestClient) -> None:
    headers = [*TLS.items(), ("X-Forwarded-User", "ana"), ("X-Forwarded-User", "lea")]
    assert client.get("/", headers=headers).status_code == 400
    odd = Headers(raw=[(b"x-forwarded-user", b"\xff")])
    with pytest.raises(ProxyError, match="expected one name"):
        Proxies.of([PROXY], "X-Forwarded-User").signed_in(odd)


def test_without_a_header_the_tokens_work_as_ever(client: TestClient, desk: Any) -> None:
    assert client.get("/", headers=TLS, follow_redirects=False).status_code == 303
    headers = TLS | {"Authorization": f"Bearer {token(desk)}"}
    assert client.post("/api/task", headers=headers).status_code == 200


def test_a_header_without_a_proxy_signs_nobody_in(desk: Any) -> None:
    desk.hire("ana")
    app = create_app(desk.database, ServerParams())
    with TestClient(app, base_url="http://127.0.0.1", client=(PROXY, 1)) as opened:
        assert opened.get("/", headers=ANA, follow_redirects=False).status_code == 303
        assert opened.post("/api/task", headers=ANA).status_code == 401


def test_nobody_is_led_from_tls_to_a_page_in_clear(desk: Any) -> None:
    app = create_app(
        desk.database, ServerParams(hosts=("label.example",), proxies=Proxies.of([PROXY]))
    )
    # The proxy itself speaks HTTP to the page.
    page = TestClient(app, base_url="http://label.example", client=(PROXY, 40000))
    answer = page.get("/lead/", headers=TLS, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (307, "https://label.example/lead")
