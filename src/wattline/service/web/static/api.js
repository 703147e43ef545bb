// Requests of this page to the service's API, and messages to the reader.

export const base = document.documentElement.dataset.base ?? "";

const csrf = () => document.querySelector('meta[name="csrf-token"]')?.content ?? "";

/** Send a request; return the content of the answer, or throw an Error with the problem's text. */
export async function send(method, path, body, more = {}) {
  const headers = { "X-CSRF-Token": csrf(), ...more };
  if (body !== undefined && !(body instanceof Blob)) headers["Content-Type"] = "application/json";
  const content = body === undefined || body instanceof Blob ? body : JSON.stringify(body);
  const answer = await fetch(`${base}/api/v1${path}`, { method, headers, body: content });
  if (answer.status === 401) location.assign(`${base}/login`);
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
      if (request.status === 200 && request.response) resolve(request.response);
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
