"""A reply that is lost on its way to the labelling page: sent again, and nothing said before."""

from typing import Any

import pytest

from tests.browser.labelling import answer, by_id, press, ready, shown, sign_in, twelve, wait_for


def lose_replies(browser: Any, path: str, reply: str) -> None:
    """The server's first reply at `path` arrives as `reply` instead, twice."""
    browser.execute_script(
        """
        const real = window.fetch, [path, reply] = arguments;
        let left = 2;
        window.sent = [];
        window.fetch = async (url, options) => {
          const answer = await real(url, options);
          if (url !== path) return answer;
          window.sent.push(JSON.parse(options.body).key);
          return left-- > 0 ? new Response(reply, { status: 200 }) : answer;
        };
        """,
        path,
        reply,
    )


@pytest.mark.parametrize("reply", ["<html>Please sign in", '{"saved": true, "fre', "null", "[]"])
def test_a_reply_that_is_not_the_servers_confirms_nothing(
    browser: Any, site: Any, pair_of: Any, reply: str
) -> None:
    site.publish(twelve(pair_of))
    sign_in(browser, site)
    first = shown(browser)
    lose_replies(browser, "/api/judgments", reply)
    press(browser, "t")
    wait_for(browser, lambda b: "Not saved yet" in by_id(b, "trouble").text)
    assert shown(browser) == first
    wait_for(browser, ready)
    sent = browser.execute_script("return window.sent")
    assert (len(sent), len(set(sent))) == (3, 1)
    assert [row[1] for row in site.labels()] == ["tie"]
    assert shown(browser) not in ("", first)
    assert by_id(browser, "count").text.startswith("1 by you")


def test_an_undo_whose_reply_was_lost_is_shown_as_undone(
    browser: Any, site: Any, pair_of: Any
) -> None:
    site.publish(twelve(pair_of))
    sign_in(browser, site)
    first = shown(browser)
    answer(browser, site, "t")
    lose_replies(browser, "/api/undo", "")
    answer(browser, site, "u")
    assert [row[1] for row in site.labels()] == ["tie", "withdrawn"]
    assert shown(browser) == first
    assert by_id(browser, "trouble").text == ""
    assert by_id(browser, "live").text.startswith("Undone.")
