/*
 * Keeps "In force" true while one types. The page comes with what is saved; here is the same rule once more: the value
 * typed here, else that of the last step before it that has one. Nothing is needed from here to save.
 */

const element = document.getElementById("sl-limits-data");
const data = element ? JSON.parse(element.textContent) : null;
const numbers = new Intl.NumberFormat(document.documentElement.lang || undefined);

function fill(text, values) {
  return text.replace(/%\((\w+)\)s/g, (_, name) => values[name]);
}

function display(name, value) {
  if (value === null) return data.texts.none;
  if (name in data.choices) return data.choices[name][value] ?? String(value);
  const number = numbers.format(value);
  return name in data.texts ? fill(data.texts[name], { number }) : number;
}

/** The value of the last step that has one, and that step's label. */
function find(name) {
  for (const step of [...data.steps].reverse()) {
    const value = step.values[name] ?? null;
    if (value !== null) return { value, source: step.label };
  }
  return { value: null, source: data.texts.default };
}

function show(output, value, source) {
  const strong = document.createElement("b");
  strong.textContent = value;
  const arrow = document.createElement("span");
  arrow.className = "sl-arrow";
  arrow.setAttribute("role", "img");
  arrow.setAttribute("aria-label", data.texts.from);
  arrow.textContent = "←";
  const provenance = document.createElement("span");
  provenance.className = "sl-provenance";
  provenance.append(arrow, ` ${source}`);
  output.replaceChildren(strong, " ", provenance);
}

function update(row) {
  const name = row.dataset.limit;
  const input = row.querySelector("input, select");
  const output = row.querySelector("output");
  if (!input || !output) return;
  row.classList.toggle("sl-set", input.value !== "" || !input.validity.valid);
  if (!data.steps || !input.validity.valid) {
    output.textContent = data.steps ? "–" : data.texts.unknown;
    return;
  }
  const inherited = find(name);
  if (input.type === "number") input.placeholder = inherited.value ?? data.texts.none;
  if (input.value === "") {
    show(output, display(name, inherited.value), inherited.source);
    return;
  }
  const replaced = { source: data.own, other: inherited.source, value: display(name, inherited.value) };
  const value = input.type === "number" ? Number(input.value) : input.value;
  show(output, display(name, value), fill(data.texts.replaces, replaced));
}

function updateAll() {
  document.querySelectorAll(".sl-limit").forEach(update);
}

/** Another tier or tenant is chosen: ask what a row inherits from it. */
async function follow(parent) {
  const asked = parent.value;
  let steps = null;
  try {
    const answer = await fetch(`${data.url}?parent=${encodeURIComponent(asked)}`);
    steps = answer.ok ? (await answer.json()).steps : null;
  } catch {
    steps = null; // without an answer nothing is claimed
  }
  if (parent.value === asked) {
    data.steps = steps;
    updateAll();
  }
}

if (data) {
  const table = document.querySelector(".sl-limits-table");
  table.addEventListener("input", (event) => update(event.target.closest(".sl-limit")));
  const parent = data.parent && document.getElementById(`id_${data.parent}`);
  // The autocomplete widget announces a choice through the admin's jQuery only.
  if (parent) window.django.jQuery(parent).on("change", () => follow(parent));
  updateAll(); // a browser may have restored what was typed before
}
