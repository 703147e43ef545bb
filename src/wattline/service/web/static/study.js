// A study that runs: its progress, and the page again when it has ended.

import { send } from "./api.js";

const study = document.getElementById("study");
async function look() {
  try {
    const run = await send("GET", `/whatif/${study.dataset.id}`);
    if (run.state === "ended" || run.state === "failed") return location.reload();
    study.querySelector("progress").value = run.completed;
  } catch {
    // the next look tells
  }
  setTimeout(look, 1000);
}
setTimeout(look, 500);
