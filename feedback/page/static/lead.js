// Pause and resume buttons of the overview.
const csrf = document.querySelector('meta[name="csrf"]').content;
const trouble = document.getElementById("trouble");

for (const button of document.querySelectorAll("[data-person]")) {
  button.addEventListener("click", async () => {
    const reply = await fetch("/api/lead/person", {
      method: "POST",
      headers: { "Content-Type": "application/json", "X-CSRF-Token": csrf },
      body: JSON.stringify({ annotator_id: button.dataset.person, paused: button.dataset.paused === "true" }),
    }).catch(() => null);
    if (reply?.ok) {
      location.reload();
      return;
    }
    trouble.textContent = reply ? `Failed: error ${reply.status}` : "The server cannot be reached.";
    trouble.hidden = false;
  });
}
