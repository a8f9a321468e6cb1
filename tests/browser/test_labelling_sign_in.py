"""What the labelling page's sign-in says to who guesses and to whose token has expired."""

import re
from collections.abc import Callable
from typing import Any

from tests.browser.labelling import Keys, by_id, wait_for


def tell(browser: Any) -> str:
    error = by_id(browser, "error")
    return str(error.text) if error.is_displayed() else ""


def type_token(browser: Any, token: str) -> None:
    field = by_id(browser, "token")
    field.clear()
    field.send_keys(token, Keys.ENTER)


def test_who_guesses_is_told_how_long_to_wait(
    browser: Any, site: Any, picture: Callable[[str], None]
) -> None:
    browser.delete_all_cookies()
    browser.get(f"{site.address}/login")
    type_token(browser, "guess")
    wait_for(browser, tell)
    assert tell(browser) == "Unknown token; ask for a new one."
    found = None
    for _ in range(12):
        # Each guess comes after the reply to the one before: replies may pass each other.
        browser.execute_script("document.getElementById('error').hidden = true")
        type_token(browser, "guess")
        said = wait_for(browser, tell)
        if found := re.fullmatch(r"Too many wrong tokens\. Try again in (\d+) seconds\.", said):
            break
    assert found is not None
    assert 1 <= int(found[1]) <= 60
    picture("guesses")


def test_who_comes_with_an_expired_token_is_told_so(browser: Any, site: Any) -> None:
    token = site.token("ana")
    with site.database.writing() as connection:
        connection.exec_driver_sql("UPDATE annotators SET token_expires_ms = 1700000000000")
    browser.delete_all_cookies()
    browser.get(f"{site.address}/login#token={token}")
    wait_for(browser, tell)
    assert tell(browser) == "Your token expired on 2023-11-14; ask for a new one."


def test_a_link_opened_where_the_sign_in_is_open_signs_in(browser: Any, site: Any) -> None:
    browser.delete_all_cookies()
    browser.get(f"{site.address}/login")
    wait_for(browser, lambda b: by_id(b, "token").is_displayed())
    browser.get(f"{site.address}/login#token={site.token('ana')}")
    wait_for(browser, lambda b: b.current_url == f"{site.address}/")
