// The labelling page: shows what the server sends, returns sides, continues only once an answer is saved.
const $ = (id) => document.getElementById(id);
const csrf = document.querySelector('meta[name="csrf"]').content;
const version = $("version").textContent; // of the guidelines that this page shows
const SIDES = ["left", "right"];
const PARTS = ["prompt", "left", "right"];

let task = null; // the pair on screen
let side = null; // the chosen side, before the strength
let busy = false; // a request is in progress: keys are ignored
let raw = false;
let seen = 0; // milliseconds for which the pair was visible
let since = 0; // when it last became visible
let later = 0; // timer of the next check while nothing is left
let unread = 0; // timer of a pair that has just come: nothing is chosen until it runs out
let unsaved = false; // an answer is on its way: leaving now would lose it
const CHECK_AGAIN_MS = 30_000;
const REPLY_MS = 10_000; // a connection that hangs says nothing by itself
const UNREAD_MS = 400; // whoever answers sooner means the pair before

const watchTime = () => {
  const now = performance.now();
  if (since) seen += now - since;
  since = document.visibilityState === "visible" ? now : 0;
};
document.addEventListener("visibilitychange", watchTime);

const say = (text) => { $("live").textContent = text; };
const trouble = (text) => { $("trouble").textContent = text; $("trouble").hidden = !text; };

async function post(path, body) {
  // Until it begins to answer: what it says may take as long as the line needs.
  const patience = new AbortController();
  const timer = setTimeout(() => patience.abort(), REPLY_MS);
  const reply = await fetch(path, {
    method: "POST",
    headers: { "Content-Type": "application/json", "X-CSRF-Token": csrf },
    body: JSON.stringify(body ?? {}),
    signal: patience.signal,
  }).finally(() => clearTimeout(timer));
  if (reply.status === 401) {
    const lost = unsaved;
    unsaved = false;
    location.replace(lost ? "/login#unsaved" : "/login");
    await new Promise(() => {}); // The page goes; nothing else may send it elsewhere.
  }
  const given = await reply.json().catch(() => null);
  return { status: reply.status, given: given ?? {} };
}

// Whether the reply is the server's own: a login page of the network and a part of a reply confirm nothing.
const confirmed = ({ status, given }) => (status >= 200 && status < 300 ? Number.isInteger(given.mine) : status < 500);

const WAITING = {
  "/api/judgments": "Not saved yet: the server does not respond. Trying again; please keep this page open.",
  "/api/undo": "Not undone yet: the server does not respond. Trying again; please keep this page open.",
  "/api/task": "The server does not respond. Trying again.",
};

// Repeats a request until the server answers; its key ensures that it is written only once.
async function persist(path, body) {
  for (let wait = 250; ; wait = Math.min(2 * wait, 4000)) {
    try {
      const result = await post(path, body);
      if (confirmed(result)) return result;
    } catch { /* the network: try again */ }
    trouble(WAITING[path]);
    await new Promise((resolve) => setTimeout(resolve, wait));
  }
}

async function during(work) {
  if (busy) return;
  busy = true;
  document.body.setAttribute("aria-busy", "true");
  try { await work(); } finally { busy = false; document.body.removeAttribute("aria-busy"); }
}

function choose(chosen) {
  side = chosen;
  for (const name of SIDES) {
    $(`${name}-card`).classList.toggle("chosen", name === side);
    document.querySelector(`[data-choice="${name}"]`).setAttribute("aria-pressed", String(name === side));
  }
  for (const button of $("strengths").children) button.disabled = side === null;
  $("strengths").classList.toggle("waiting", side !== null);
  if (side) say(`Response ${side === "left" ? 1 : 2} chosen. How much better, 1 to 4?`);
}

function fill() {
  for (const part of PARTS) {
    const box = $(part);
    const plain = task[`${part}_raw`];
    const asText = raw && plain !== null;
    box.classList.toggle("raw", asText);
    // The server has sanitised this HTML, and the page's policy runs only our scripts.
    if (asText) box.textContent = plain; else box.innerHTML = task[part];
  }
  for (const side of SIDES) {
    $(`${side}-cut`).hidden = !task[`${side}_cut`];
    $(`${side}-empty`).hidden = Boolean($(side).textContent.trim());
    $(`${side}-empty`).textContent = task[`${side}_raw`].trim()
      ? "Nothing but marks of formatting; Plain shows them." : "The response is empty.";
  }
}

function show(given) {
  clearTimeout(later);
  $("count").textContent = given.round
    ? `${given.mine} by you · about ${given.done} of ${given.pairs} pairs of ${given.round}`
    : `${given.mine} by you`;
  $("changed").hidden = given.guidelines === version;
  $("bar").max = given.pairs || 1;
  $("bar").value = given.done;
  const fresh = given.task?.assignment_id !== task?.assignment_id;
  task = given.task ?? null;
  const rested = !$("message").hidden;
  $("work").hidden = !task;
  $("message").hidden = Boolean(task);
  if (!task) return rest(given, rested);
  if (fresh) { seen = 0; since = 0; watchTime(); scrollTo(0, 0); letRead(); }
  fill();
  choose(null);
  $("prompt-title").focus({ preventScroll: true });
}

function rest(given, rested) {
  const paused = given.state === "paused";
  $("message-title").textContent = paused ? "You are paused" : "Nothing left for you";
  $("message-text").textContent = paused
    ? `Please talk to the person who runs this round. Reason: ${given.reason}`
    : "Thank you. New pairs may appear when others have answered, or with the next round.";
  if (!rested) $("message-title").focus();
  if (!paused) later = setTimeout(load, CHECK_AGAIN_MS);
}

const load = () => during(async () => {
  const { status, given } = await persist("/api/task");
  if (status === 200) { trouble(""); show(given); } else trouble(given.detail ?? `Error ${status}`);
});

const newKey = () => Array.from(crypto.getRandomValues(new Uint8Array(16)), (n) => n.toString(16).padStart(2, "0")).join("");

const send = (choice, strength, reason) => during(async () => {
  watchTime();
  unsaved = true;
  const { status, given } = await persist("/api/judgments", {
    assignment_id: task.assignment_id, choice, strength: strength ?? null,
    reason: reason || null, visible_ms: Math.round(seen), key: newKey(), guidelines: version,
  });
  unsaved = false;
  if (status === 200) { trouble(""); say("Saved. Next pair."); show(given); return; }
  const why = typeof given.detail === "string" ? given.detail : `error ${status}`;
  const next = await persist("/api/task");
  if (next.status === 200) show(next.given);
  trouble(`Not accepted: ${why}.`);
});

const undo = () => during(async () => {
  const { status, given } = await persist("/api/undo", { key: newKey() });
  if (status !== 200) {
    const next = await persist("/api/task");
    if (next.status === 200) show(next.given);
    trouble(`Not undone: ${given.detail ?? status}.`);
    return;
  }
  if (given.undone) task = null;
  show(given);
  trouble(given.back ? "" : given.undone ? "Undone. Others have settled that pair meanwhile: it does not come back." : "There is nothing more to undo.");
  if (given.back) say("Undone. Judge this pair again.");
});

async function signOut() {
  const reply = await post("/api/logout").catch(() => null);
  if (reply?.given.ok) location.replace("/login");
  else trouble(`You are still signed in: ${reply?.given.detail ?? "the server does not respond"}.`);
}

function askReason() {
  $("reason").value = "";
  $("skip-dialog").showModal();
}
function skip(reason) {
  if (!reason.trim()) { $("reason").focus(); return; }
  $("skip-dialog").close();
  send("skip", null, reason);
}

function letRead() {
  clearTimeout(unread);
  document.body.dataset.unread = "";
  unread = setTimeout(() => { unread = 0; delete document.body.dataset.unread; }, UNREAD_MS);
}
function pick(choice) {
  if (!task || busy || unread) return;
  if (SIDES.includes(choice)) choose(choice);
  else if (choice === "skip") askReason();
  else send(choice);
}
// A click on the chosen side takes it back.
function press(button) {
  const { choice } = button.dataset;
  if (side !== null && choice === side && !busy) { choose(null); say("No response chosen."); } else pick(choice);
}
function rate(strength) {
  if (task && side && !busy && !unread) send(side, strength);
}

const narrow = matchMedia("(max-width: 46rem)"); // as in style.css: there the guidelines cover the pair
const covered = () => narrow.matches && !$("guidelines").hidden;
function cover() {
  for (const beneath of document.querySelectorAll("body > header, main")) beneath.inert = covered();
}
function toggleGuidelines() {
  const hidden = ($("guidelines").hidden = !$("guidelines").hidden);
  $("show-guidelines").setAttribute("aria-expanded", String(!hidden));
  const was = hidden && $("guidelines").contains(document.activeElement);
  cover();
  if (covered()) $("close-guidelines").focus();
  else if (was) $("show-guidelines").focus();
}
narrow.addEventListener("change", cover);
function toggleRaw() {
  raw = !raw;
  $("raw").setAttribute("aria-pressed", String(raw));
  if (task) fill();
}
const isDark = () => (document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
const showTheme = () => $("theme").setAttribute("aria-pressed", String(isDark()));
function toggleTheme() {
  document.documentElement.dataset.theme = isDark() ? "light" : "dark";
  localStorage.setItem("theme", document.documentElement.dataset.theme);
  showTheme();
}

const KEYS = {
  ArrowLeft: () => pick("left"), ArrowRight: () => pick("right"),
  t: () => pick("tie"), b: () => pick("both_bad"), s: () => pick("skip"),
  1: () => rate(1), 2: () => rate(2), 3: () => rate(3), 4: () => rate(4),
  Enter: () => rate(null), Escape: () => choose(null), u: undo,
  g: toggleGuidelines, r: toggleRaw, d: toggleTheme, "?": () => $("help-dialog").showModal(),
};

// By its letter or, where the layout has others (Arabic, Greek, Russian), by its place on the keyboard.
function keyOf({ key, code, shiftKey }) {
  const letter = key.length === 1 ? key.toLowerCase() : key;
  if (letter in KEYS || /^[A-Za-z]/.test(letter) || shiftKey) return letter;
  return /^(?:Key|Digit)(.)$/.exec(code)?.[1].toLowerCase() ?? letter;
}

document.addEventListener("keydown", (event) => {
  // A held Enter would press a button again and again: the chosen side would be taken back.
  if (event.repeat && event.key === "Enter" && event.target.closest("button")) event.preventDefault();
  if (event.ctrlKey || event.metaKey || event.altKey || event.repeat) return;
  if (document.querySelector("dialog[open]")) return;
  const key = keyOf(event);
  // Enter on a focused button presses it; on the chosen side's button it saves.
  const control = event.target.closest("button, a, summary");
  if (key === "Enter" && control && !(side && control.dataset.choice === side)) return;
  if (!(key in KEYS)) return;
  if (covered()) {
    if (key === "Escape" || key === "g") toggleGuidelines();
    return;
  }
  // Wide code that has the focus scrolls.
  const within = event.target.closest(".text");
  if (key.startsWith("Arrow") && within && event.target.scrollWidth > event.target.clientWidth) return;
  event.preventDefault();
  KEYS[key]();
});
$("skip-dialog").addEventListener("keydown", (event) => {
  // An Enter that ends the composing of a word (Japanese, Chinese, Korean) is none of ours.
  if (event.isComposing) return;
  const reason = $("skip-dialog").querySelectorAll("[data-reason]")[Number(keyOf(event)) - 1];
  const writing = event.target === $("reason");
  if (reason && !writing) { event.preventDefault(); skip(reason.dataset.reason); }
  if (event.key === "Enter" && writing && !event.shiftKey) { event.preventDefault(); skip($("reason").value); }
});
$("skip-form").addEventListener("submit", (event) => { event.preventDefault(); skip($("reason").value); });
$("skip-cancel").addEventListener("click", () => $("skip-dialog").close());

// The second click of a double click would judge the next pair, unseen. (By keyboard, detail is 0.)
for (const button of document.querySelectorAll("[data-choice]")) button.addEventListener("click", (event) => { if (event.detail < 2) press(button); });
for (const button of document.querySelectorAll("[data-strength]")) button.addEventListener("click", (event) => { if (event.detail < 2) rate(Number(button.dataset.strength) || null); });
for (const button of document.querySelectorAll("[data-reason]")) button.addEventListener("click", () => skip(button.dataset.reason));
// Nor may it take back a second answer.
$("undo").addEventListener("click", (event) => { if (event.detail < 2) undo(); });
$("again").addEventListener("click", load);
$("show-guidelines").addEventListener("click", toggleGuidelines);
$("close-guidelines").addEventListener("click", toggleGuidelines);
$("raw").addEventListener("click", toggleRaw);
$("theme").addEventListener("click", toggleTheme);
$("show-help").addEventListener("click", () => $("help-dialog").showModal());
$("logout").addEventListener("click", signOut);
addEventListener("beforeunload", (event) => { if (unsaved) event.preventDefault(); });

const theme = localStorage.getItem("theme");
if (theme) document.documentElement.dataset.theme = theme;
showTheme();
load();
