// What can be taken away: files, lines of Python, and a link that restores caption and settings.

export function save(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

export function saveJson(value, name) {
  save(new Blob([JSON.stringify(value, null, 1)], { type: "application/json" }), name);
}

// A text as Python writes it: JSON's escapes are Python's too, but for pairs of surrogates, which are left as they are.
const python = (text) => JSON.stringify(text);

export function pythonLines(state, model) {
  const options = [];
  if (state.given) options.push(`phrases=[${state.given.map(([start, end]) => `(${start}, ${end})`).join(", ")}]`);
  if (state.mode === "alone") options.push('decode="independent"');
  const name = model.model.startsWith("phrasechain ") ? "" : python(model.model);
  const argument = options.length ? `, ${options.join(", ")}` : "";
  return [
    "from phrasechain import Grounder",
    "",
    `grounder = Grounder.from_pretrained(${name})`,
    `found = grounder.ground(${python(state.photo?.name ?? "photo.jpg")}, ${python(state.caption)}${argument})`,
    "for phrase in found.phrases:",
    "    print(phrase.text, phrase.category, phrase.box, phrase.probability)",
    'found.draw(probabilities=True).save("grounded.png")',
    "",
  ].join("\n");
}

export function toLink(state) {
  const values = new URLSearchParams();
  if (state.caption) values.set("caption", state.caption);
  if (state.given) values.set("phrases", state.given.map((span) => span.join("-")).join(","));
  if (state.mode !== "joint") values.set("mode", state.mode);
  if (state.least) values.set("least", String(Math.round(100 * state.least)));
  if (state.sample) values.set("photo", state.sample);
  return `#${values}`;
}

export function fromLink(hash) {
  const values = new URLSearchParams(hash.replace(/^#/, ""));
  const spans = (values.get("phrases") ?? "").split(",").map((span) => span.split("-").map(Number));
  const isSpan = ([start, end]) => Number.isInteger(start) && Number.isInteger(end) && start < end;
  const least = Number(values.get("least") ?? 0) / 100;
  return {
    caption: (values.get("caption") ?? "").slice(0, 2000),
    given: values.has("phrases") && spans.every(isSpan) ? spans : null,
    mode: values.get("mode") === "alone" ? "alone" : "joint",
    least: least >= 0 && least <= 1 ? least : 0,
    sample: values.get("photo"),
  };
}
