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


def test_a_connection_that_hangs_is_told_and_tried_again(
    browser: Any, site: Any, pair_of: Any
) -> None:
    site.publish(twelve(pair_of))
    sign_in(browser, site)
    first = shown(browser)
    # As on a network that went away without a word: the first request is never answered.
    browser.execute_script(
        """
        const real = window.fetch;
        let left = 1;
        window.fetch = (url, options) => left-- > 0
          ? new Promise((_, refuse) => options.signal.onabort = () => refuse(options.signal.reason))
          : real(url, options);
        """
    )
    press(browser, "t")
    wait_for(browser, lambda b: "Not saved yet" in by_id(b, "trouble").text, 30)
    wait_for(browser, lambda _: [row[1] for row in site.labels()] == ["tie"])
    wait_for(browser, lambda b: shown(b) != first)


def test_a_reply_that_takes_longer_than_a_silence_may_is_waited_for(
    browser: Any, site: Any, pair_of: Any
) -> None:
    """Long responses over a slow line."""
    site.publish(twelve(pair_of))
    sign_in(browser, site)
    first = shown(browser)
    browser.execute_script(
        """
        const real = window.fetch;
        window.sent = 0;
        window.fetch = async (url, options) => {
          const reply = await real(url, options);
          window.sent += url === "/api/judgments";
          const text = await reply.text();
          const body = new ReadableStream({ start: out => {
            options.signal.addEventListener("abort", () => out.error(options.signal.reason));
            setTimeout(() => { out.enqueue(new TextEncoder().encode(text)); out.close(); }, 12000);
          } });
          return new Response(body, { status: reply.status });
        };
        """
    )
    press(browser, "t")
    wait_for(browser, lambda b: shown(b) != first, 30)
    assert browser.execute_script("return window.sent") == 1
    assert by_id(browser, "trouble").text == ""


def test_an_answer_on_its_way_is_not_left_without_a_question(
    browser: Any, site: Any, pair_of: Any
) -> None:
    def leaves() -> bool:
        """Whether the page would go without asking."""
        return bool(
            browser.execute_script(
                "return dispatchEvent(new Event('beforeunload', { cancelable: true }))"
            )
        )

    site.publish([pair_of("Long.", "line\n\n" * 200, "other")])
    sign_in(browser, site)
    assert leaves()
    port = int(site.address.rsplit(":", 1)[1])
    site.kill()
    browser.execute_script("scrollTo(0, document.body.scrollHeight)")
    press(browser, "t")
    trouble = wait_for(browser, lambda b: by_id(b, "trouble").text and by_id(b, "trouble"))
    # Where the person is, not above the long text.
    box = browser.execute_script("return arguments[0].getBoundingClientRect().toJSON()", trouble)
    assert box["top"] >= 0
    assert box["bottom"] <= browser.execute_script("return innerHeight")
    assert not leaves()
    site.start(port)
    wait_for(browser, ready)
    assert leaves()


def test_who_is_signed_out_meanwhile_is_told_that_the_answer_was_not_saved(
    browser: Any, site: Any, pair_of: Any
) -> None:
    site.publish(twelve(pair_of))
    sign_in(browser, site)
    browser.delete_all_cookies()
    press(browser, "t")
    wait_for(browser, lambda b: b.current_url == f"{site.address}/login")
    said = wait_for(browser, lambda b: by_id(b, "error").text)
    assert "your last answer was not saved" in said
    assert site.labels() == []


def test_a_check_for_new_pairs_says_nothing_of_an_answer(
    browser: Any, site: Any, pair_of: Any
) -> None:
    site.publish([pair_of("Only.", "one", "two")])
    sign_in(browser, site)
    answer(browser, site, "t")
    port = int(site.address.rsplit(":", 1)[1])
    site.kill()
    by_id(browser, "again").click()
    wait_for(browser, lambda b: by_id(b, "trouble").text)
    assert by_id(browser, "trouble").text == "The server does not respond. Trying again."
    site.start(port)
    wait_for(browser, lambda b: not by_id(b, "trouble").text)
