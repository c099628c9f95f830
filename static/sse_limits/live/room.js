/* The live room's page: puts each new content in its place, unless the page is held or paused, and says which it is. */

import { wireActions } from "./actions.js";
import { draw, setUtcOffset } from "./chart.js";
import { Feed } from "./feed.js";
import { wireFilters } from "./filters.js";
import { morph } from "./morph.js";
import { heldBecause, newRows, show, tellNew } from "./tables.js";
import { text } from "./texts.js";

const LOOK_AGAIN_MS = 250;
const room = document.getElementById("sl-room");
const state = document.getElementById("sl-state");
const stateText = document.getElementById("sl-state-text");
const pause = document.getElementById("sl-pause");
const first = JSON.parse(document.getElementById("sl-first").textContent);

let connection = "connecting";
let isPaused = false;
let waiting = null; // content that came while the page was held
let isAsked = false; // somebody wants to see what is new, held or not

const feed = new Feed(room, receive, name => {
  connection = name;
  sayState();
});

function receive(view) {
  if (isAsked || heldBecause() === null) apply(view);
  else {
    waiting = view;
    for (const [table, rows] of tablesOf(view)) tellNew(table, newRows(table, rows));
  }
  if (view.away) state.dataset.away = view.own ? "own" : "away";
  else delete state.dataset.away;
  sayState();
}

/** Begin again with the filters of the address, and show what comes even while the page is held. */
function refresh() {
  isAsked = true;
  feed.restart();
}

function apply(view) {
  waiting = null;
  for (const [name, html] of Object.entries(view.parts)) {
    const part = room.querySelector(`[data-part="${name}"]`);
    if (part) morph(part, html);
    for (const found of room.querySelectorAll(`[data-shown-if="${name}"]`)) found.hidden = !html;
    for (const found of room.querySelectorAll(`[data-hidden-if="${name}"]`)) found.hidden = Boolean(html);
  }
  for (const [table, rows] of tablesOf(view)) show(table, rows, isAsked);
  isAsked = false;
  drawAll(view.charts);
  document.getElementById("sl-clock").textContent = view.clock;
}

function tablesOf(view) {
  const found = Object.entries(view.tables).map(([name, rows]) => [room.querySelector(`[data-table="${name}"]`), rows]);
  return found.filter(([table]) => table);
}

function drawAll(charts) {
  for (const [name, data] of Object.entries(charts)) {
    const element = room.querySelector(`[data-chart="${name}"]`);
    if (element?.clientWidth) draw(element, data);
  }
}

function sayState() {
  const held = isPaused ? "paused" : heldBecause();
  state.toggleAttribute("data-held", held !== null);
  state.toggleAttribute("data-lost", connection === "lost" || connection === "denied");
  const live = connection === "live" || connection === "polling" ? state.dataset.away ?? connection : connection;
  const said = text(held ?? live);
  if (stateText.textContent !== said) stateText.textContent = said;
}

function setPaused(paused) {
  isPaused = paused;
  pause.setAttribute("aria-pressed", String(paused));
  pause.textContent = text(paused ? "resume" : "pause");
  runOrNot();
}

function runOrNot() {
  if (isPaused || document.hidden) feed.stop();
  else feed.start();
  sayState();
}

function showWaiting(event) {
  const button = event.target.closest("[data-new-rows]");
  if (!button) return;
  button.hidden = true;
  isAsked = true;
  if (waiting) apply(waiting);
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea, dialog")) return;
  if (event.key === "p") setPaused(!isPaused);
  else if (event.key === "/") {
    const search = room.querySelector("[data-search]");
    if (!search) return;
    event.preventDefault();
    search.focus();
    search.select();
  }
}

room.dataset.live = "";
pause.hidden = false;
pause.addEventListener("click", () => setPaused(!isPaused));
document.addEventListener("keydown", onKey);
document.addEventListener("visibilitychange", runOrNot);
room.addEventListener("click", showWaiting);
wireFilters(room, refresh);
wireActions(room);
setUtcOffset(first.utc_offset);
drawAll(first.charts);
document.querySelector(".sl-tabs [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
/* Held or not is looked at often, so that what waited is shown as soon as the table is left. */
setInterval(() => {
  if (waiting && heldBecause() === null) apply(waiting);
  sayState();
}, LOOK_AGAIN_MS);
runOrNot();
