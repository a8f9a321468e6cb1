// What the overview's buttons do: pause and resume, export, publish.
const csrf = document.querySelector('meta[name="csrf"]').content;
const trouble = document.getElementById("trouble");
const done = document.getElementById("done");

// Why the server refused: FastAPI's `detail`, or the plain text of what stands before it.
function reason(text, status) {
  try {
    const { detail } = JSON.parse(text);
    return typeof detail === "string" ? detail : `error ${status}`;
  } catch {
    return text || `error ${status}`;
  }
}

// The reply, if the server did it; otherwise the page says why not.
async function post(path, type, body) {
  const headers = { "Content-Type": type, "X-CSRF-Token": csrf };
  const reply = await fetch(path, { method: "POST", headers, body }).catch(() => null);
  if (reply?.ok) {
    trouble.hidden = true;
    return reply;
  }
  trouble.textContent = reply ? `Failed: ${reason(await reply.text(), reply.status)}` : "The server cannot be reached, or it ended the connection because nothing arrived.";
  trouble.hidden = false;
  return null;
}
const postJson = (path, value) => post(path, "application/json", JSON.stringify(value));

for (const button of document.querySelectorAll("[data-person]")) {
  button.addEventListener("click", async () => {
    const change = { annotator_id: button.dataset.person, paused: button.dataset.paused === "true" };
    if (await postJson("/api/lead/person", change)) location.reload();
  });
}

for (const button of document.querySelectorAll("[data-export]")) {
  button.addEventListener("click", async () => {
    const { export: round, form } = button.dataset;
    const reply = await postJson("/api/lead/export", { round, form });
    if (!reply) return;
    const link = document.createElement("a");
    link.href = URL.createObjectURL(await reply.blob());
    link.download = decodeURIComponent(reply.headers.get("Content-Disposition").split("''")[1]);
    link.click();
    URL.revokeObjectURL(link.href);
  });
}

document.getElementById("publish")?.addEventListener("submit", async (event) => {
  event.preventDefault();
  const given = new FormData(event.target);
  const where = new URLSearchParams({ round: given.get("round") });
  if (given.get("overlap")) where.set("overlap", given.get("overlap"));
  const reply = await post(`/api/lead/publish?${where}`, "application/x-ndjson", given.get("file"));
  if (!reply) return;
  const { added, kept, removed } = await reply.json();
  done.textContent = `${given.get("round")}: ${added} pairs added, ${kept} kept, ${removed} removed. Reload to see it.`;
  done.hidden = false;
});
