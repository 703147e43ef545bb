// The form of a job: plan first, then submit.

import { base, element, notify, send, showJoules, showTime } from "./api.js";

const form = document.getElementById("job-form");
const yaml = document.getElementById("yaml");
let planned = null;
let key = "";

function choose(asYaml) {
  document.getElementById("fields").hidden = asYaml;
  document.getElementById("yaml-part").hidden = !asYaml;
  document.getElementById("use-form").setAttribute("aria-pressed", String(!asYaml));
  document.getElementById("use-yaml").setAttribute("aria-pressed", String(asYaml));
  for (const field of document.querySelectorAll("#fields input, #fields select, #fields textarea")) field.disabled = asYaml;
  forget();
}
document.getElementById("use-form").addEventListener("click", () => choose(false));
document.getElementById("use-yaml").addEventListener("click", () => choose(true));

function forget() {
  planned = null;
  document.getElementById("plan-result").hidden = true;
}
form.addEventListener("input", forget);

function readValue(text) {
  const word = text.trim();
  return word !== "" && Number.isFinite(Number(word)) ? Number(word) : word;
}

function readMatrix(text) {
  const matrix = {};
  for (const line of text.split("\n").filter((one) => one.trim())) {
    const at = line.indexOf(":");
    if (at < 1) throw new Error(`sweep: ${line} has no name, expected lr: 0.001, 0.01`);
    const rest = line.slice(at + 1).trim();
    matrix[line.slice(0, at).trim()] = /^\d+\.\.\d+$/.test(rest) ? rest : rest.split(",").map(readValue);
  }
  return matrix;
}

async function readJob() {
  if (!document.getElementById("yaml-part").hidden)
    return (await send("POST", "/jobfile", new Blob([yaml.value], { type: "application/yaml" }))).job;
  const values = Object.fromEntries([...new FormData(form)].map(([name, value]) => [name, value.trim()]));
  const job = { run: values.run };
  for (const name of ["workdir", "name", "team", "model"]) if (values[name]) job[name] = values[name];
  if (values.priority) job.priority = Number(values.priority);
  const resources = {};
  if (values.gpus) resources.gpus = /^\d+$/.test(values.gpus) ? Number(values.gpus) : values.gpus;
  if (values.gpu_type) resources.gpu_type = values.gpu_type;
  if (values.time) resources.time = values.time;
  job.resources = resources;
  const energy = {};
  for (const name of ["max_slowdown", "power"]) if (values[name]) energy[name] = values[name];
  if (Object.keys(energy).length) job.energy = energy;
  if (values.matrix) job.matrix = readMatrix(values.matrix);
  return job;
}

const clock = (seconds) => (seconds === null ? "–" : showTime(seconds));
const energyText = (one) => (one.energy_j === null ? "–" : `${showJoules(one.energy_j)} ${one.energy_method}`);

function showPlan(plan) {
  const rows = [plan.expected, ...plan.alternatives].filter(Boolean).map((one) => {
    const row = document.createElement("tr");
    const cells = [one.scenario, one.starts_s === null ? one.reason || "–" : clock(one.starts_s), clock(one.ends_s)];
    row.append(...cells.map((text) => element("td", text)));
    row.append(element("td", one.gpus, "number"), element("td", one.kind || "–"));
    row.append(element("td", one.cap_w ? `${Math.round(one.cap_w)} W` : "–", "number"), element("td", energyText(one), "number"));
    return row;
  });
  document.getElementById("plan-rows").replaceChildren(...rows);
  document.getElementById("plan-notes").replaceChildren(...plan.notes.map((text) => element("li", text)));
  const count = plan.jobs === 1 ? "One job" : `${plan.jobs} jobs`;
  document.getElementById("plan-text").textContent = plan.feasible ? `${count}. Nothing is submitted yet: this is what is expected.` : `This can never run: ${plan.reason}`;
  const button = document.getElementById("submit-job");
  button.disabled = !plan.feasible;
  button.textContent = plan.jobs === 1 ? "Submit" : `Submit ${plan.jobs} jobs`;
  document.getElementById("plan-result").hidden = false;
  button.focus();
}

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const button = document.getElementById("plan");
  button.disabled = true;
  try {
    planned = await readJob();
    key = crypto.getRandomValues(new Uint32Array(4)).join("-");
    showPlan(await send("POST", "/plan", planned));
  } catch (error) {
    notify(error.message);
  }
  button.disabled = false;
});

document.getElementById("submit-job").addEventListener("click", async (event) => {
  if (!planned) return;
  event.target.disabled = true;
  try {
    const answer = await send("POST", "/jobs", planned, { "Idempotency-Key": key });
    const first = answer.jobs[0];
    location.assign(first.sweep ? `${base}/sweeps/${first.sweep}` : `${base}/jobs/${first.id}`);
  } catch (error) {
    notify(error.message);
    event.target.disabled = false;
  }
});
