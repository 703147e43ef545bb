// The form of a what-if study: the trace is sent as it is, and the page of the study shows the progress.

import { base, notify, send } from "./api.js";

const form = document.getElementById("whatif");
form?.addEventListener("submit", async (event) => {
  event.preventDefault();
  const fields = new FormData(form);
  const file = fields.get("trace");
  const upload = fields.get("source") === "upload";
  if (upload && !(file instanceof File && file.size)) return notify("choose a file with a trace");
  const query = new URLSearchParams();
  for (const policy of fields.getAll("policy")) query.append("policy", policy);
  for (const name of ["cluster", "budget", "user"]) if (fields.get(name)) query.set(name, fields.get(name));
  if (upload) query.set("name", file.name.slice(0, 100));
  const button = form.querySelector("button");
  button.disabled = true;
  try {
    const study = await send("POST", `/whatif?${query}`, upload ? new Blob([file]) : undefined);
    location.assign(`${base}/whatif/${study.id}`);
  } catch (error) {
    notify(error.message);
    button.disabled = false;
  }
});
