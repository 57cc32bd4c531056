// The OpenAPI document as a page.

const element = (name, properties = {}, ...children) => {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
};
const document_ = await (await fetch("/openapi.json")).json();
const schemas = document_.components.schemas;
const resolved = (schema) => (schema?.$ref ? schemas[schema.$ref.split("/").at(-1)] : schema ?? {});

function type(schema) {
  if (schema.$ref) return schema.$ref.split("/").at(-1);
  if (schema.enum) return schema.enum.map((name) => `“${name}”`).join(", ");
  if (schema.anyOf) return schema.anyOf.map(type).join(" or ");
  if (schema.prefixItems) return `[${schema.prefixItems.map(type).join(", ")}]`;
  if (schema.type === "array") return `list of ${type(schema.items ?? {})}`;
  return schema.type ?? "any";
}

function fields(schema) {
  const { properties = {}, required = [] } = resolved(schema);
  const rows = Object.entries(properties).map(([name, field]) => element("tr", {},
    element("td", { textContent: name + (required.includes(name) ? " *" : "") }),
    element("td", { textContent: type(field) }), element("td", { textContent: field.description ?? "" })));
  return element("table", {}, element("tbody", {}, ...rows));
}

function route(path, method, about) {
  const body = about.requestBody?.content["application/json"].schema;
  const card = element("section", { className: "card" }, element("h2", { textContent: `${method.toUpperCase()} ${path}` }),
    element("p", { textContent: about.description ?? "" }));
  if (body) card.append(fields(body));
  const answers = Object.entries(about.responses).map(([status, answer]) => element("tr", {},
    element("td", { textContent: status }), element("td", { textContent: answer.description })));
  card.append(element("details", {}, element("summary", { textContent: "Answers" }), element("table", {}, ...answers)));
  if (body) {
    const sample = {
      template: "Tom is a [MASK]. [MASK:6]", text: "Tom is a cat.", position: 3, seed: 1,
      texts: ["a warm and funny film"], question: "Who is a mouse?", context: "Jerry is a mouse.",
    };
    const { properties } = resolved(body);
    const used = Object.fromEntries(Object.entries(sample).filter(([name]) => properties[name]));
    card.append(element("pre", { textContent: `curl -N ${location.origin}${path} -H 'content-type: application/json' \\\n  -d '${JSON.stringify(used)}'` }));
  }
  return card;
}

const routes = Object.entries(document_.paths).flatMap(([path, methods]) => Object.entries(methods).map(([method, about]) => route(path, method, about)));
document.getElementById("routes").append(...routes);
const theme = localStorage.getItem("pmlm-theme");
if (theme ? theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches) document.documentElement.classList.add("dark");
