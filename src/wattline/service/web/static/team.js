// The bill of a team and its budgets: energy, money, CO₂, savings and forecasts, as the API has them.

import { digits, element, notify, send, showJoules, showTime } from "./api.js";

const place = document.getElementById("bill");

/** Return a cell with a rounded value, and the exact one as its title. */
function figure(value, text, unit) {
  const cell = element("td", value === null ? "–" : text, "number");
  if (value !== null) {
    cell.classList.add("figure");
    cell.title = `${value} ${unit}`.trim();
  }
  return cell;
}

const showMoney = (value) =>
  Math.abs(value) >= 1 ? value.toLocaleString("en", { minimumFractionDigits: 2, maximumFractionDigits: 2 }) : digits(value);

function energy(line) {
  const unknown = line.unknown_attempts ? `${line.unknown_attempts} attempts unknown` : "";
  if (line.energy_j === null) return element("td", unknown || "–", "number");
  const cell = figure(line.energy_j, showJoules(line.energy_j), "J");
  if (unknown) cell.append(element("small", `; ${unknown}`));
  return cell;
}

function table(heads, rows, label) {
  const made = document.createElement("table");
  const top = made.createTHead().insertRow();
  for (const [text, ...classes] of heads) {
    const head = element("th", text, ...classes);
    head.scope = "col";
    top.append(head);
  }
  const body = made.createTBody();
  for (const cells of rows)
    body.insertRow().append(...cells.map((cell) => (typeof cell === "string" ? element("td", cell) : cell)));
  const scroll = element("div", null, "scroll");
  scroll.tabIndex = 0;
  scroll.setAttribute("role", "region");
  scroll.setAttribute("aria-label", label);
  scroll.append(made);
  return scroll;
}

function billTable(bill) {
  const line = (name, one) => [
    name,
    energy(one),
    one.methods.join(", ") || "–",
    figure(one.money, `${showMoney(one.money ?? 0)} ${bill.currency}`.trim(), bill.currency),
    figure(one.co2_kg, `${digits(one.co2_kg ?? 0)} kg`, "kg"),
    figure(one.gpu_hours, digits(one.gpu_hours), "GPU hours"),
    element("td", one.jobs, "number"),
  ];
  const heads = [["user"], ["energy", "number"], ["method"], ["money", "number"], ["CO₂", "number"], ["GPU hours", "number"], ["jobs", "number"]];
  const rows = bill.users.map((one) => line(one.name || "the service", one));
  const made = table(heads, [...rows, line("all", bill.total)], `Bill of ${bill.month}`);
  made.id = "bill-lines";
  return made;
}

function savingsTable(savings) {
  const heads = [["by"], ["saved", "number"], ["against"], ["jobs", "number"], ["not estimated", "number"]];
  const rows = savings.map((one) => {
    const error = one.error_j === null ? ", error unknown" : ` ± ${showJoules(one.error_j)}`;
    const saved = one.saved_j === null ? element("td", "not estimated", "number") : figure(one.saved_j, showJoules(one.saved_j) + error, "J");
    const reasons = Object.entries(one.reasons).map(([reason, count]) => `${reason}: ${count} attempts`);
    const rest = element("td", one.not_estimated_j ? showJoules(one.not_estimated_j) : "–", "number", "wide");
    if (reasons.length) rest.append(element("small", ` ${reasons.join("; ")}`));
    return [one.name, saved, element("td", one.baseline, "wide"), element("td", one.jobs, "number"), rest];
  });
  const made = table(heads, rows, "Savings");
  made.id = "bill-savings";
  return made;
}

function listNotes(notes) {
  const list = element("ul", null, "notes");
  for (const note of notes) list.append(element("li", `${note[0].toUpperCase()}${note.slice(1)}.`));
  return list;
}

/** Return the budgets of the team and of the whole cluster, with what is used and when nothing is left. */
function budgetTable(usage) {
  const show = (one, value) => {
    if (one.unit === "J") return figure(value, showJoules(value ?? 0), "J");
    return figure(value, `${digits(value ?? 0)} ${one.unit}`, one.unit);
  };
  const when = (one, at, never) => (one.unit !== "J" ? "–" : at === null ? never : showTime(at));
  const rows = usage.map((one) => [
    one.budget,
    show(one, one.limit),
    show(one, one.used),
    show(one, one.left),
    when(one, one.exhausted_s, one.rate_w === null ? "unknown" : "not before it resets"),
    when(one, one.resets_s, "never"),
  ]);
  const heads = [["budget"], ["limit", "number"], ["used", "number"], ["left", "number"], ["exhausted at the present rate"], ["resets"]];
  const made = table(heads, rows, "Budgets");
  made.id = "bill-budgets";
  return made;
}

try {
  const { team, month } = place.dataset;
  // As parameters: browsers shorten the path of a team that is named "..".
  const bill = await send("GET", `/bill?${new URLSearchParams({ team, month })}`);
  if (bill.team !== team || bill.month !== month) throw new Error("the service sent the bill of another team or month");
  const parts = [
    billTable(bill),
    element("h3", "Savings"),
    element("p", "They overlap, so they have no sum.", "soft"),
    savingsTable(bill.savings),
    listNotes([bill.method, ...bill.notes]),
  ];
  const budgets = await send("GET", "/budgets");
  const own = budgets.usage.filter((one) => one.team === team || one.team === "");
  if (own.length) parts.push(element("h3", `Budgets of the team and of the cluster (${budgets.method})`), budgetTable(own));
  document.getElementById("bill-loading").replaceWith(...parts);
} catch (error) {
  document.getElementById("bill-loading").textContent = `The bill could not be loaded: ${error.message}`;
  notify(error.message);
}
place.setAttribute("aria-busy", "false");
