// Signs in with a token: typed, or from the address after '#', which no server and no log gets to see.
const form = document.getElementById("login");
const field = document.getElementById("token");
const error = document.getElementById("error");

async function signIn(token) {
  const answer = await fetch("/api/login", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ token }),
  }).catch(() => null);
  if (answer?.ok) {
    location.replace("/");
    return;
  }
  error.textContent = answer ? "This token is not known. Ask for a new one." : "The server cannot be reached.";
  error.hidden = false;
  field.focus();
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  signIn(field.value.trim());
});

const given = new URLSearchParams(location.hash.slice(1)).get("token");
if (given) {
  history.replaceState(null, "", "/login");
  signIn(given);
}
