// Requests of this page to the service's API, and messages to the reader.

export const base = document.documentElement.dataset.base ?? "";

const csrf = () => document.querySelector('meta[name="csrf-token"]')?.content ?? "";

/** Return the address of the login, which leads back to this page. */
export function loginAddress() {
  const next = location.pathname.slice(base.length) + location.search;
  return `${base}/login?${new URLSearchParams({ ended: "true", next })}`;
}

/** Send a request; return the content of the answer, or throw an Error with the problem's text. */
export async function send(method, path, body, more = {}) {
  const headers = { "X-CSRF-Token": csrf(), ...more };
  if (body !== undefined && !(body instanceof Blob)) headers["Content-Type"] = "application/json";
  const content = body === undefined || body instanceof Blob ? body : JSON.stringify(body);
  const answer = await fetch(`${base}/api/v1${path}`, { method, headers, body: content });
  if (answer.status === 401) location.assign(loginAddress());
  const text = await answer.text();
  const data = text ? JSON.parse(text) : null;
  if (!answer.ok) {
    const error = new Error([data?.detail, data?.hint].filter(Boolean).join(" – ") || answer.statusText);
    error.problem = data;
    throw error;
  }
  return data;
}

/** Fetch a page as a document. The parser of XMLHttpRequest runs no script of it. */
export function fetchPage(address) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open("GET", address);
    request.responseType = "document";
    request.onload = () => {
      const isLogin = new URL(request.responseURL).pathname === `${base}/login`;
      if (isLogin) reject(Object.assign(new Error("the session has ended"), { hasEnded: true }));
      else if (request.status === 200 && request.response) resolve(request.response);
      else reject(new Error(`the page answers ${request.status}`));
    };
    request.onerror = () => reject(new Error("the service does not answer"));
    request.send();
  });
}

let hiding = 0;

/** Show a short message at the bottom of the page. */
export function notify(text) {
  const place = document.getElementById("message");
  if (!place) return;
  place.textContent = visible(text);
  place.hidden = false;
  clearTimeout(hiding);
  hiding = setTimeout(() => (place.hidden = true), 8000);
}

/** Ask a question with Yes and No. */
export function confirmAction(text) {
  const dialog = document.getElementById("confirm");
  document.getElementById("confirm-text").textContent = visible(text);
  dialog.returnValue = "no";
  dialog.showModal();
  document.getElementById("confirm-no").focus();
  return new Promise((resolve) =>
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true }),
  );
}

const hidden = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g;

/** Return text with control and direction characters as visible codes, as the pages of the service have it. */
export function visible(text) {
  return text.replace(hidden, (one) => `⟦U+${one.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟧`);
}

/** Create an element with text. */
export function element(name, text, ...classes) {
  const made = document.createElement(name);
  if (text !== undefined && text !== null) made.textContent = visible(String(text));
  made.classList.add(...classes);
  return made;
}

const energyUnits = [[3600, 1, "J"], [3.6e6, 3600, "Wh"], [Infinity, 3.6e6, "kWh"]];

/** Return a number with at least three significant digits, never as a power of ten. */
export function digits(value) {
  if (value !== 0 && Math.abs(value) < 0.001) return "<0.001";
  const places = Math.abs(value) >= 100 ? 0 : { maximumSignificantDigits: 3 };
  return value.toLocaleString("en", places === 0 ? { maximumFractionDigits: 0 } : places);
}

/** Return an energy in the units of a bill. */
export function showJoules(value) {
  const [, unit, name] = energyUnits.find(([limit]) => Math.abs(value) < limit);
  return `${digits(value / unit)} ${name}`;
}

/** Return a time as the other pages show it. */
export function showTime(at) {
  const made = new Date(1000 * at);
  const two = (value) => String(value).padStart(2, "0");
  const day = `${made.getFullYear()}-${two(made.getMonth() + 1)}-${two(made.getDate())}`;
  return `${day} ${two(made.getHours())}:${two(made.getMinutes())}`;
}
