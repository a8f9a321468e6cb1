// Pause and resume buttons of the overview.
const csrf = document.querySelector('meta[name="csrf"]').content;
const trouble = document.getElementById("trouble");

for (const button of document.querySelectorAll("[data-person]")) {
  button.addEventListener("click", async () => {
    const answer = await fetch("/api/lead/person", {
      method: "POST",
      headers: { "Content-Type": "application/json", "X-CSRF-Token": csrf },
      body: JSON.stringify({ annotator_id: button.dataset.person, paused: button.dataset.paused === "true" }),
    }).catch(() => null);
    if (answer?.ok) {
      location.reload();
      return;
    }
    trouble.textContent = answer ? `Not done: ${answer.status}` : "The server cannot be reached.";
    trouble.hidden = false;
  });
}
