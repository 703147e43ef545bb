// Every page: live parts, keys, theme, time zone, and buttons that change jobs.

import { base, confirmAction, fetchPage, loginAddress, notify, send } from "./api.js";
import { watchCharts } from "./chart.js";

const root = document.documentElement;
const year = "; Path=/; SameSite=Lax; Max-Age=31536000";

// -- time zone and theme

const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
if (zone && !document.cookie.includes(`wattline_zone=${zone}`)) {
  document.cookie = `wattline_zone=${zone}${year}`;
  if (document.getElementById("zone")?.textContent !== zone) refresh();
}

document.getElementById("theme")?.addEventListener("click", () => {
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  document.cookie = `wattline_theme=${root.dataset.theme}${year}`;
});

document.getElementById("logout")?.addEventListener("click", async () => {
  try {
    await send("DELETE", "/session");
  } finally {
    location.assign(`${base}/login`);
  }
});

// -- live parts: the page is fetched again, and the parts that differ are replaced

let fetching = false;
let again = false;
let waitsUntil = 0;

export async function refresh() {
  if (fetching) {
    again = true;
    return;
  }
  fetching = true;
  const began = performance.now();
  try {
    const fresh = await fetchPage(location.href);
    for (const part of document.querySelectorAll("[data-live]")) {
      const next = fresh.querySelector(`[data-live="${part.dataset.live}"]`);
      if (next && !part.isEqualNode(next) && !isInUse(part)) replace(part, next);
    }
    const zoneName = fresh.getElementById("zone");
    document.dispatchEvent(new Event("wattline-refreshed"));
    if (zoneName) document.getElementById("zone")?.replaceWith(document.importNode(zoneName, true));
  } catch (error) {
    if (error.hasEnded) endSession();
    else setConnection("lost", error.message);
  }
  // A service that answers slowly is asked less often.
  waitsUntil = performance.now() + Math.min(8 * (performance.now() - began), 30_000);
  fetching = false;
  if (again) {
    again = false;
    later();
  }
}

let scheduled = 0;
function later() {
  if (scheduled) return;
  scheduled = setTimeout(() => {
    scheduled = 0;
    refresh();
  }, Math.max(waitsUntil - performance.now(), 0));
}

function isInUse(part) {
  return part.contains(document.activeElement) && document.activeElement.matches("input, select, textarea");
}

const nameChart = (figure) => figure.querySelector("figcaption")?.textContent ?? "";

function replace(part, next) {
  const picked = new Set([...part.querySelectorAll(".pick-one:checked")].map((box) => box.value));
  const open = [...part.querySelectorAll("details")].map((one) => one.open);
  const active = part.contains(document.activeElement) ? document.activeElement : null;
  const focused = active?.getAttribute("href");
  const chart = active?.closest(".plot") ? nameChart(active.closest("figure")) : null;
  const made = document.importNode(next, true);
  part.replaceWith(made);
  for (const box of made.querySelectorAll(".pick-one")) box.checked = picked.has(box.value);
  made.querySelectorAll("details").forEach((one, at) => (one.open = open[at] ?? false));
  if (focused) [...made.querySelectorAll("a")].find((one) => one.getAttribute("href") === focused)?.focus();
  if (chart !== null) {
    // In another time there may be fewer charts.
    const figures = [...made.querySelectorAll("figure")];
    (figures.find((one) => nameChart(one) === chart) ?? figures[0])?.querySelector(".plot")?.focus();
  }
  countPicked();
  watchCharts(made);
}

document.addEventListener("wattline-zoom", () => refresh());

// -- the stream of changes; hidden pages close it, as a browser has few connections to one host

let source = null;
let heard = 0;
let hasEnded = false;

function setConnection(state, text) {
  const place = document.getElementById("connection");
  if (!place) return;
  place.className = `connection ${state}`;
  document.getElementById("connection-text").textContent = text;
}

/** Say that the session has ended; what was typed into this page stays. */
function endSession() {
  hasEnded = true;
  disconnect();
  setConnection("lost", "");
  const link = document.createElement("a");
  link.href = loginAddress();
  link.textContent = "session ended, log in";
  document.getElementById("connection-text").append(link);
}

function connect() {
  if (hasEnded || source || document.hidden || !document.getElementById("connection")) return;
  let first = true;
  source = new EventSource(`${base}/api/v1/live`);
  source.addEventListener("change", (event) => {
    heard = performance.now();
    setConnection("live", "live");
    const change = JSON.parse(event.data);
    const own = document.getElementById("job")?.dataset.job;
    const concerns = !change.jobs || !own || change.jobs.length === 0 || change.jobs.includes(own);
    if (concerns && !(first && isFresh())) later();
    first = false;
  });
  source.onerror = () => {
    setConnection("lost", "connection lost");
    if (source?.readyState === EventSource.CLOSED) {
      disconnect();
      refresh(); // finds out if the session has ended
      setTimeout(connect, 3000);
    }
  };
}

const loaded = performance.now();
const isFresh = () => performance.now() - loaded < 1000 && !waitsUntil;

function disconnect() {
  source?.close();
  source = null;
}

document.addEventListener("visibilitychange", () => {
  if (document.hidden) disconnect();
  else connect();
});
setInterval(() => {
  if (source && heard) {
    const age = Math.round((performance.now() - heard) / 1000);
    if (age > 15) setConnection("lost", `no data for ${age} s`);
  }
}, 1000);

// -- buttons

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-post]");
  if (!button) return;
  if (button.dataset.confirm && !(await confirmAction(button.dataset.confirm))) return;
  button.disabled = true;
  try {
    await send("POST", button.dataset.post);
    await refresh();
  } catch (error) {
    notify(error.message);
  }
  button.disabled = false;
});

const picked = () => [...document.querySelectorAll(".pick-one:checked")].map((box) => box.value);

function countPicked() {
  const button = document.getElementById("cancel-picked");
  if (!button) return;
  const count = picked().length;
  button.disabled = count === 0;
  button.textContent = count ? `Cancel ${count} selected` : "Cancel selected";
}

document.addEventListener("change", (event) => {
  if (event.target.id === "pick-all")
    for (const box of document.querySelectorAll(".pick-one")) box.checked = event.target.checked;
  if (event.target.matches("#pick-all, .pick-one")) countPicked();
});

document.addEventListener("click", async (event) => {
  if (event.target.id !== "cancel-picked") return;
  const ids = picked();
  if (!ids.length || !(await confirmAction(`Cancel ${ids.length === 1 ? `job ${ids[0]}` : `${ids.length} jobs`}?`))) return;
  try {
    const answer = await send("POST", "/jobs/actions", { action: "cancel", select: { jobs: ids } });
    notify(`${answer.changed} cancelled${answer.refused ? `, ${answer.refused} refused` : ""}`);
    for (const box of document.querySelectorAll(".pick-one")) box.checked = false;
    await refresh();
  } catch (error) {
    notify(error.message);
  }
});

// -- rows and keys

document.addEventListener("click", (event) => {
  const row = event.target.closest("tr[data-href]");
  if (row && !event.target.closest("a, button, input, label, summary") && !getSelection().toString())
    location.assign(row.dataset.href);
});

const keysOn = document.getElementById("keys-on");
if (keysOn) {
  keysOn.checked = localStorage.getItem("wattline-keys") !== "off";
  keysOn.addEventListener("change", () => localStorage.setItem("wattline-keys", keysOn.checked ? "on" : "off"));
}
document.getElementById("help")?.addEventListener("click", () => document.getElementById("keys").showModal());

let chosen = -1;
document.addEventListener("keydown", (event) => {
  const typing = event.target.matches("input, select, textarea, [contenteditable]");
  if (typing || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (!keysOn?.checked) return;
  const rows = [...document.querySelectorAll("tr[data-href]")];
  if (event.key === "/") {
    document.getElementById("search")?.focus();
  } else if (event.key === "?") {
    document.getElementById("keys").showModal();
  } else if ((event.key === "j" || event.key === "k") && rows.length) {
    chosen = Math.min(Math.max(chosen + (event.key === "j" ? 1 : -1), 0), rows.length - 1);
    rows.forEach((row, at) => row.classList.toggle("chosen", at === chosen));
    rows[chosen].querySelector("a")?.focus();
    rows[chosen].scrollIntoView({ block: "nearest" });
  } else {
    return;
  }
  event.preventDefault();
});

connect();
watchCharts(document);
