from preferences.data_docs import make_readable_offline

PAGE = """<!doctype html><html><head>
<link rel="stylesheet" href="https://cdn.example/x.css"/>
<link rel=stylesheet href=//cdn.example/y.css>
<link rel="shortcut icon" href="../static/favicon.ico"/>
<script src="https://cdn.example/x.js"></script><SCRIPT>
  alert(1)
</SCRIPT >
<scr<script></script>ipt>alert(3)</scr<script></script>ipt>
<META http-equiv=refresh content="0;url=https://evil.example">
</head><body onload="alert(2)">
<img src="https://cdn.example/logo.png"><iframe src="https://x"></iframe>
<a href="https://docs.example/">docs</a><p>Observed: 3</p></body></html>"""


def test_pages_keep_their_words_and_lose_all_that_runs_or_is_fetched(tmp_path):
    page = tmp_path / "deep" / "page.html"
    page.parent.mkdir()
    page.write_text(PAGE)
    make_readable_offline(tmp_path)
    html = page.read_text()
    for gone in ("cdn.example", "alert(", "<script", "<iframe", "onload", "refresh"):
        assert gone not in html.lower()
    for kept in (
        "Observed: 3",
        "../static/favicon.ico",
        "https://docs.example/",
        "default-src 'none'",
    ):
        assert kept in html
    assert html.index("Content-Security-Policy") < html.index("<style>") < html.index("</head>")
    assert '<a href="deep/page.html">' in (tmp_path / "index.html").read_text()
