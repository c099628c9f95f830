/* Ending streams: the confirm page's form in a dialog, then each row says "ending…" until its slot is gone.
   Without this script the same links and forms lead to the confirm page. */

import { text } from "./texts.js";

const ASK_AGAIN_MS = 200;
const GIVE_UP_MS = 15_000;
const SHOWN_MS = 5000;

/** Let buttons that ask open the dialog, and checkboxes select rows. */
export function wireActions(room) {
  const dialog = document.getElementById("sl-dialog");
  room.addEventListener("click", event => {
    const link = event.target.closest("a.sl-ask");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    ask(dialog, link.href);
  });
  room.addEventListener("change", event => {
    if (event.target.matches("[data-select], [data-select-all]")) select(room, event.target);
  });
  room.addEventListener("submit", event => {
    if (!event.target.matches("[data-selection]")) return;
    event.preventDefault();
    ask(dialog, `${event.target.action}?${new URLSearchParams(new FormData(event.target))}`);
  });
  room.addEventListener("click", event => {
    if (event.target.closest("[data-clear]")) clear(room);
  });
  dialog.addEventListener("submit", event => {
    event.preventDefault();
    send(room, dialog, event.target);
  });
  dialog.addEventListener("click", event => {
    if (!event.target.closest("[data-cancel]")) return;
    event.preventDefault();
    dialog.close();
  });
  for (const box of room.querySelectorAll("[data-select-all]")) box.hidden = false;
  clear(room);
}

async function ask(dialog, url) {
  const answer = await fetch(url, { headers: { "X-Requested-With": "fetch" } }).catch(() => null);
  if (!answer?.ok || answer.redirected) {
    location.assign(url);
    return;
  }
  dialog.innerHTML = await answer.text();
  dialog.showModal();
  dialog.querySelector("[data-cancel]")?.focus();
}

async function send(room, dialog, form) {
  const button = form.querySelector("[type=submit]");
  button.disabled = true;
  const headers = { "X-Requested-With": "fetch", Accept: "application/json" };
  const answer = await fetch(form.action, { method: "POST", body: new FormData(form), headers }).catch(() => null);
  button.disabled = false;
  if (!answer?.ok) {
    const message = await answer?.json().catch(() => null);
    form.querySelector("[role=alert]").textContent = message?.error ?? text("lost");
    return;
  }
  const { streams, url } = await answer.json();
  dialog.close();
  if (url) location.assign(url);
  else {
    clear(room);
    follow(room, streams);
  }
}

/** Watch the ordered ends until no slot is held any more. */
async function follow(room, streams) {
  const began = performance.now();
  let open = new Map(streams.map(stream => [stream.id, stream]));
  for (const id of open.keys()) say(room, id, text("ending"));
  while (open.size && performance.now() - began < GIVE_UP_MS) {
    await new Promise(resolve => setTimeout(resolve, ASK_AGAIN_MS));
    const query = new URLSearchParams([...open.keys()].map(id => ["stream", id]));
    const answer = await fetch(`${room.dataset.ended}?${query}`).catch(() => null);
    if (!answer?.ok) continue;
    const seconds = ((performance.now() - began) / 1000).toFixed(1);
    for (const id of (await answer.json()).ended) {
      finish(room, id, text("ended", seconds, open.get(id).node));
      open.delete(id);
    }
  }
  for (const id of open.keys()) release(say(room, id, text("not_confirmed", GIVE_UP_MS / 1000)));
}

const rowOf = (room, id) => room.querySelector(`tr[data-key="${CSS.escape(id)}"]`);

function say(room, id, words) {
  const row = rowOf(room, id);
  if (!row) return null;
  row.dataset.doing = "ending";
  row.lastElementChild.textContent = words;
  row.lastElementChild.classList.add("q");
  const box = row.querySelector("[data-select]");
  if (box) box.disabled = true;
  return row;
}

function finish(room, id, words) {
  const row = say(room, id, ` ${words}`);
  if (!row) return;
  row.classList.add("gone");
  row.lastElementChild.insertAdjacentHTML("afterbegin", '<svg class="sl-ic ok" aria-hidden="true"><use href="#sl-i-ok"/></svg>');
  setTimeout(() => row.remove(), SHOWN_MS);
}

function release(row) {
  if (row) setTimeout(() => delete row.dataset.doing, SHOWN_MS);
}

/* -- selection -- */

function select(room, box) {
  if (box.matches("[data-select-all]")) {
    for (const one of room.querySelectorAll("[data-select]:not(:disabled)")) one.checked = box.checked;
  }
  tellSelected(room);
}

function clear(room) {
  for (const box of room.querySelectorAll("[data-select], [data-select-all]")) box.checked = false;
  tellSelected(room);
}

function tellSelected(room) {
  const boxes = [...room.querySelectorAll("[data-select]")];
  for (const box of boxes) box.closest("tr").toggleAttribute("aria-selected", false);
  const chosen = boxes.filter(box => box.checked && !box.disabled);
  for (const box of chosen) box.closest("tr").setAttribute("aria-selected", "true");
  const bar = room.querySelector("[data-selected-bar]");
  if (!bar) return;
  bar.hidden = !chosen.length;
  bar.querySelector("[data-selected-count]").textContent = text("selected_count", chosen.length);
}
