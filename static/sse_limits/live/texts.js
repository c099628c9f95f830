/* The texts that scripts show: they stand in the page, translated. `#` and `@` are where a number and a name go. */

const texts = new Map(
  [...document.getElementById("sl-texts").content.querySelectorAll("[data-text]")].map(found => [found.dataset.text, found.textContent]),
);

/** A text by its name. */
export function text(name, number = "", word = "") {
  return (texts.get(name) ?? name).replace("#", number).replace("@", word);
}
