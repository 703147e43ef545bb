// The page of a job: its explanation, which takes a while, and its log while it grows.

import { base, element, fetchPage, notify, send } from "./api.js";

const mostLines = 5000;

// -- explanation

const explanation = document.getElementById("explanation");
const readState = () => document.querySelector('[data-live="head"]')?.dataset.state ?? "";
let explained = readState();

function explain() {
  if (!explanation?.dataset.load) return;
  fetchPage(explanation.dataset.load)
    .then((fresh) => {
      const found = fresh.getElementById("explanation");
      if (found) explanation.replaceChildren(...document.importNode(found, true).childNodes);
    })
    .catch((error) => explanation.replaceChildren(element("p", error.message, "soft")));
}

explain();
// A job that has started no longer waits, and one that has ended has nothing to expect.
document.addEventListener("wattline-refreshed", () => {
  const state = readState();
  if (state === explained) return;
  explained = state;
  if (state.startsWith("PENDING") || state.startsWith("RUNNING")) explain();
  else explanation?.remove();
});

// -- log

const log = document.getElementById("log");
let source = null;

function makeLine(text) {
  const line = element("span", text);
  line.append("\n");
  return line;
}

/** Remove the oldest line; the link to earlier lines would miss it, so that it goes too. */
function dropFirst() {
  log.firstElementChild.remove();
  document.getElementById("log-earlier")?.remove();
}

// Earlier lines are added above, up to the most that a page holds; then the link opens a page of them.
let loading = false;

async function addEarlier(link) {
  if (loading) return;
  loading = true;
  const job = document.getElementById("job").dataset.job;
  const query = new URLSearchParams({
    before: link.dataset.before, rank: log.dataset.rank, search: log.dataset.search, lines: "500",
  });
  try {
    const page = await send("GET", `/jobs/${job}/logs/lines?${query}`);
    const height = log.scrollHeight - log.scrollTop;
    log.prepend(...page.lines.map(makeLine));
    log.scrollTop = log.scrollHeight - height; // what was read stays where it is
    if (page.lines.length) document.getElementById("log-empty")?.remove();
    if (page.before) {
      const address = new URL(link.href);
      address.searchParams.set("before", page.before);
      link.href = address.href;
      link.dataset.before = page.before;
    } else link.remove();
    if (page.lost) notify("The earlier output was deleted when the log was rotated.");
  } catch (error) {
    notify(error.message);
  }
  loading = false;
}

document.getElementById("log-earlier")?.addEventListener("click", (event) => {
  if (log.childElementCount + 500 > mostLines) return; // follow the link
  event.preventDefault();
  addEarlier(event.currentTarget);
});
log?.addEventListener("scroll", () => {
  const link = document.getElementById("log-earlier");
  if (link && log.scrollTop < 40 && log.childElementCount + 500 <= mostLines) addEarlier(link);
});

function follow() {
  if (!log || log.dataset.follow !== "true" || source || document.hidden) return;
  const job = document.getElementById("job").dataset.job;
  const query = new URLSearchParams({ follow: "true", rank: log.dataset.rank, attempt: log.dataset.attempt });
  if (log.dataset.since) query.set("since", log.dataset.since); // the page has the lines before
  source = new EventSource(`${base}/api/v1/jobs/${job}/logs?${query}`);
  let arrived = [];
  let lines = [];
  let bar = null;
  let drawing = false;

  function draw() {
    drawing = false;
    const atEnd = log.scrollTop + log.clientHeight >= log.scrollHeight - 30;
    log.querySelector(".bar")?.remove();
    if (lines.length > mostLines) lines = lines.slice(-mostLines);
    const added = document.createDocumentFragment();
    for (const line of lines) added.append(makeLine(line));
    lines = [];
    log.append(added);
    while (log.childElementCount > mostLines) dropFirst();
    if (bar !== null) log.append(element("span", bar, "bar"));
    if (atEnd) log.scrollTop = log.scrollHeight;
    document.getElementById("log-empty")?.remove();
  }

  function schedule() {
    if (drawing) return;
    drawing = true;
    requestAnimationFrame(draw);
  }

  source.onmessage = (event) => {
    arrived.push(event.data);
    if (event.lastEventId === log.dataset.since) return; // more lines come with the next position
    log.dataset.since = event.lastEventId; // where a page that was hidden continues
    lines.push(...arrived);
    arrived = [];
    bar = null;
    schedule();
  };
  source.addEventListener("bar", (event) => {
    bar = event.data;
    schedule();
  });
  source.addEventListener("end", () => {
    source.close();
    log.dataset.follow = "false";
    if (bar !== null) schedule();
  });
}

document.addEventListener("visibilitychange", () => {
  if (!document.hidden) follow();
  else if (source) {
    source.close();
    source = null;
  }
});
if (log) log.scrollTop = log.scrollHeight;
follow();
