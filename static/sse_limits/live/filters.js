/* Filters and open rows stand in the query string. Choosing submits the form; opening a row stays on the page. */

/** Let selects submit at once, and rows open without leaving. */
export function wireFilters(room, refresh) {
  for (const button of room.querySelectorAll("[data-no-script]")) button.hidden = true;
  for (const select of room.querySelectorAll("select[data-submits]")) {
    select.addEventListener("change", () => select.form.requestSubmit());
  }
  for (const form of room.querySelectorAll("form[method=get]")) form.addEventListener("formdata", leaveOutEmpty);
  room.addEventListener("click", event => {
    const chevron = event.target.closest(".sl-x");
    if (!chevron) return;
    event.preventDefault();
    toggle(chevron, room);
    refresh();
  });
}

/* A filter that says nothing has no place in the address. */
function leaveOutEmpty({ formData }) {
  for (const [name, value] of [...formData]) if (value === "") formData.delete(name);
}

function toggle(chevron, room) {
  const isOpen = chevron.getAttribute("aria-expanded") === "true";
  const url = new URL(location.href);
  const others = url.searchParams.getAll("open").filter(key => key !== chevron.value);
  url.searchParams.delete("open");
  url.searchParams.delete("close");
  for (const key of isOpen ? others : [...others, chevron.value]) url.searchParams.append("open", key);
  history.replaceState(null, "", url);
  for (const name of ["events", "now"]) {
    const path = room.dataset[name].split("?")[0];
    room.dataset[name] = path + url.search;
  }
  chevron.setAttribute("aria-expanded", String(!isOpen));
  chevron.name = isOpen ? "open" : "close";
}
