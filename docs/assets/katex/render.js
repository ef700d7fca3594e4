// Formulas as pymdownx.arithmatex marks them, on each page that is opened.
const delimiters = [
  { left: "\\(", right: "\\)", display: false },
  { left: "\\[", right: "\\]", display: true },
];
document.addEventListener("DOMContentLoaded", () =>
  document
    .querySelectorAll(".arithmatex")
    .forEach((formula) => renderMathInElement(formula, { delimiters, throwOnError: false })),
);
