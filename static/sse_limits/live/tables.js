/* The tables: rows by key, values in place. Rows never move under pointer or focus; while a table is held, what is new
   waits and is counted on a button. */

import { become, rowOf } from "./morph.js";
import { text } from "./texts.js";

/** Why nothing may move now, or null. */
export function heldBecause() {
  if (document.querySelector("dialog[open]")) return "asking";
  if (document.querySelector(".sl-table tr[aria-selected=true]")) return "selected";
  if (document.querySelector(".sl-table tbody:hover")) return "held";
  if (document.querySelector(".sl-table tbody :focus-visible")) return "focused";
  return null;
}

/** Show the rows of a table as `[key, html]`, in their order. `isAsked`: new rows too, where they wait to be asked. */
export function show(table, rows, isAsked = false) {
  const body = table.tBodies[0];
  const shown = new Map([...body.rows].map(row => [row.dataset.key, row]));
  const isWaiting = "asks" in table.dataset && !isAsked && shown.size > 0;
  const wanted = isWaiting ? rows.filter(([key]) => shown.has(key)) : rows;
  let before = body.firstElementChild;
  for (const [key, html] of wanted) {
    const old = shown.get(key);
    const row = old ?? rowOf(html);
    shown.delete(key);
    if (old && !old.dataset.doing) become(old, rowOf(html));
    if (row === before) before = before.nextElementSibling;
    else if (!isWaiting) body.insertBefore(row, before);
  }
  if (!isWaiting) for (const row of shown.values()) if (!row.dataset.doing) row.remove();
  tellNew(table, isWaiting ? newRows(table, rows) : 0);
}

/** How many of these rows the table does not show yet. */
export function newRows(table, rows) {
  const shown = new Set([...table.tBodies[0].rows].map(row => row.dataset.key));
  return rows.filter(([key]) => !shown.has(key)).length;
}

/** Offer the rows that wait, where the button moves nothing: in the head of the table's section, or among the filters. */
export function tellNew(table, count) {
  const name = table.dataset.table;
  let button = document.querySelector(`[data-new-rows="${name}"]`);
  if (!button) {
    if (!count) return;
    button = document.createElement("button");
    button.type = "button";
    button.className = "sl-btn";
    button.dataset.newRows = name;
    const head = table.closest(".sl-sec")?.querySelector(":scope > header");
    if (head) end(head).append(button);
    else document.querySelector("#sl-filters > .end").before(button);
  }
  button.hidden = !count;
  button.textContent = text("new", count);
}

function end(head) {
  return head.querySelector(".end") ?? head.appendChild(Object.assign(document.createElement("span"), { className: "end" }));
}
