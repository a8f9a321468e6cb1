// Signs in with a token: typed in, or from the address after '#', which no server or log sees.
const form = document.getElementById("login");
const field = document.getElementById("token");
const error = document.getElementById("error");

async function signIn(token) {
  const reply = await fetch("/api/login", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ token }),
  }).catch(() => null);
  if (reply?.ok) {
    location.replace("/");
    return;
  }
  const wait = reply?.headers.get("Retry-After");
  if (!reply) error.textContent = "The server cannot be reached.";
  else if (wait) error.textContent = `Too many wrong tokens. Try again in ${wait} seconds.`;
  else {
    const { detail } = await reply.json().catch(() => ({}));
    error.textContent = typeof detail === "string" ? `${detail[0].toUpperCase()}${detail.slice(1)}.` : `Error ${reply.status}.`;
  }
  error.hidden = false;
  field.focus();
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  signIn(field.value.trim());
});

// Also where a link is opened in a tab that shows this page: that loads nothing.
function readHash() {
  const given = new URLSearchParams(location.hash.slice(1));
  if (!given.has("token") && !given.has("unsaved")) return;
  history.replaceState(null, "", "/login");
  if (given.has("token")) signIn(given.get("token"));
  else {
    error.textContent = "You were signed out, and your last answer was not saved. Sign in and judge that pair again.";
    error.hidden = false;
  }
}
addEventListener("hashchange", readHash);
readHash();
