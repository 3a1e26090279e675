// A box that filters the operations; without JavaScript the page has all but this.
const list = document.querySelector(".timeline");
if (list && list.querySelector(".fold")) {
  const box = document.createElement("input");
  box.type = "search";
  box.placeholder = "Filter: a file, a process, lost, fsync ...";
  box.setAttribute("aria-label", "Filter operations");
  box.className = "filter";
  list.before(box);
  const rows = [...list.querySelectorAll("li:not(.fold):not(.cut):not(.head)")];
  const folds = [...list.querySelectorAll("details")];
  const texts = rows.map((row) => row.textContent.toLowerCase());
  let wait;
  box.addEventListener("input", () => {
    clearTimeout(wait);
    wait = setTimeout(() => {
      const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
      rows.forEach((row, at) => (row.hidden = !words.every((word) => texts[at].includes(word))));
      folds.forEach((fold) => {
        fold.open = words.length > 0;
        fold.parentElement.hidden = words.length > 0 && !fold.querySelector("li:not([hidden])");
      });
    }, 150);
  });
}
