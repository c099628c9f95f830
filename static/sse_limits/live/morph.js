/* Make what is shown equal to what the server says now, touching only what differs: focus, pointer and selection stay.
   A value (`.sl-v`) whose text changed flashes. */

/* What this page's own scripts set: never taken away by an update. */
const OURS = new Set(["aria-selected", "data-doing", "open", "data-live"]);

/** Make the children of `element` those of `html`. */
export function morph(element, html) {
  const template = document.createElement("template");
  template.innerHTML = html;
  children(element, template.content);
}

/** A row of a table from its HTML, which stands in no table. */
export function rowOf(html) {
  const template = document.createElement("template");
  template.innerHTML = html;
  return template.content.firstElementChild;
}

/** Make one element like another of its kind. */
export function become(old, wanted) {
  for (const { name, value } of wanted.attributes) {
    if (old.getAttribute(name) !== value && !OURS.has(name)) old.setAttribute(name, value);
  }
  for (const { name } of [...old.attributes]) {
    if (!wanted.hasAttribute(name) && !OURS.has(name)) old.removeAttribute(name);
  }
  children(old, wanted);
}

function children(old, wanted) {
  let here = old.firstChild;
  for (const next of [...wanted.childNodes]) {
    if (here === null) {
      old.append(next);
      continue;
    }
    const after = here.nextSibling;
    if (here.nodeName !== next.nodeName) here.replaceWith(next);
    else if (here.nodeType === Node.ELEMENT_NODE) become(here, next);
    else if (here.nodeValue !== next.nodeValue) {
      here.nodeValue = next.nodeValue;
      flash(old);
    }
    here = after;
  }
  while (here !== null) {
    const after = here.nextSibling;
    here.remove();
    here = after;
  }
}

function flash(element) {
  if (!element.classList?.contains("sl-v")) return;
  element.classList.remove("flash");
  void element.offsetWidth; // begins the animation again
  element.classList.add("flash");
  element.addEventListener("animationend", () => element.classList.remove("flash"), { once: true });
}
