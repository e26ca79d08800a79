// The page of the API, made from its OpenAPI document; nothing is loaded from elsewhere.

import { get } from "./api.js";

function make(name, text, className) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

function typeOf(schema) {
  if (schema.anyOf) return schema.anyOf.map(typeOf).filter((name) => name !== "null").join(" or ");
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(", ");
  if (schema.prefixItems) return `[${schema.prefixItems.map(typeOf).join(", ")}]`;
  if (schema.type === "array") return `list of ${typeOf(schema.items ?? {})}`;
  if (schema.$ref) return schema.$ref.split("/").pop();
  return schema.format ?? schema.type ?? "anything";
}

function table(schema) {
  const made = make("table");
  for (const [name, field] of Object.entries(schema.properties ?? {})) {
    const row = made.insertRow();
    const title = make("th");
    title.scope = "row";
    title.append(make("code", name), schema.required?.includes(name) ? " *" : "");
    row.append(title);
    row.insertCell().textContent = typeOf(field);
    const more = field.default === undefined || field.default === null ? "" : ` By default ${JSON.stringify(field.default)}.`;
    row.insertCell().textContent = `${field.description ?? ""}${more}`;
  }
  return made;
}

function route(path, method, details) {
  const section = make("section");
  const title = make("h2");
  title.append(make("span", method.toUpperCase(), "method"), " ", make("code", path));
  section.append(title, make("p", details.description ?? ""));
  const content = details.requestBody?.content ?? {};
  const json = content["application/json"]?.schema;
  if (json) {
    section.append(make("h3", content["multipart/form-data"] ? "As JSON, or as a form with the same fields" : "As JSON"));
    section.append(table(json));
    if (json.example) {
      const example = make("pre", JSON.stringify(json.example, null, 2));
      example.tabIndex = 0;
      section.append(make("h3", "For example"), example);
    }
  }
  const answers = Object.entries(details.responses).filter(([status]) => status !== "default");
  section.append(make("h3", "Answers"), make("p", answers.map(([status, answer]) => `${status} ${answer.description}`).join(" · "), "help"));
  return section;
}

async function start() {
  const { origin } = location;
  document.getElementById("curl").textContent = [
    `curl -F image=@photo.jpg ${origin}/api/photos`,
    `curl --json '{"photo": "ID", "caption": "a man with a camera"}' ${origin}/api/ground`,
  ].join("\n");
  try {
    const { paths } = await get("/api/openapi.json");
    const sections = Object.entries(paths).flatMap(([path, methods]) =>
      Object.entries(methods).map(([method, details]) => route(path, method, details)));
    document.getElementById("routes").replaceChildren(...sections);
  } catch (error) {
    document.getElementById("docs-status").textContent = error.message;
  }
}

start();
