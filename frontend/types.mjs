// Makes src/api.ts, the types of the API, from docs/openapi.json. With --check it only says whether that is up to date.
//
// What the dashboard shows as the text it was sent as (payload, result, …) becomes `Raw`: see src/lib/json.ts.
import { readFile, writeFile } from "node:fs/promises";

const document = JSON.parse(await readFile("../docs/openapi.json", "utf8"));
const schemas = document.components.schemas;
const RAW = new Set(["payload", "result", "progress", "headers", "detail"]); // as in src/lib/json.ts
const nameOf = (ref) => ref.split("/").pop().replace(/[^A-Za-z0-9_]/g, "_");

function typeOf(schema) {
  if (schema === undefined || Object.keys(schema).filter((key) => !["title", "description", "default"].includes(key)).length === 0) return "unknown";
  if (schema.$ref) return nameOf(schema.$ref);
  if (schema.enum) return schema.enum.map((one) => JSON.stringify(one)).join(" | ");
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  const several = schema.anyOf ?? schema.oneOf;
  if (several) return [...new Set(several.map(typeOf))].join(" | ");
  if (Array.isArray(schema.type)) return schema.type.map((type) => typeOf({ ...schema, type })).join(" | ");
  switch (schema.type) {
    case "string": return "string";
    case "integer": case "number": return "number";
    case "boolean": return "boolean";
    case "null": return "null";
    case "array":
      if (schema.prefixItems) return `[${schema.prefixItems.map(typeOf).join(", ")}]`;
      return `readonly (${typeOf(schema.items)})[]`;
    case "object":
      if (schema.properties) return objectOf(schema);
      if (schema.additionalProperties) return `{ readonly [name: string]: ${typeOf(schema.additionalProperties)} }`;
      return "{ readonly [name: string]: unknown }";
  }
  return "unknown";
}

function objectOf(schema) {
  const required = new Set(schema.required ?? []);
  const lines = Object.entries(schema.properties).map(([name, one]) => {
    const said = one.description ? `  /** ${one.description.replaceAll("*/", "* /").replaceAll("\n", " ")} */\n` : "";
    return `${said}  readonly ${/^[A-Za-z_]\w*$/.test(name) ? name : JSON.stringify(name)}${required.has(name) ? "" : "?"}: ${RAW.has(name) ? typeOf(one).replace("unknown", "Raw") : typeOf(one)};`;
  });
  return `{\n${lines.join("\n")}\n}`;
}

const parts = [
  "// Made from docs/openapi.json by types.mjs (`python frontend/hook.py types`). Do not edit.",
  'import type { Raw } from "./lib/json.ts";\n',
];
for (const name of Object.keys(schemas).sort()) {
  if (/^(Answers_|OpenQueue)/.test(name)) continue;
  const schema = schemas[name];
  const said = schema.description ? `/** ${schema.description.replaceAll("*/", "* /")} */\n` : "";
  parts.push(`${said}export type ${nameOf(name)} = ${typeOf(schema)};\n`);
}
const made = parts.join("\n");
if (process.argv.includes("--check")) {
  const there = await readFile("src/api.ts", "utf8").catch(() => "");
  if (there !== made) {
    console.error("frontend/src/api.ts is not what docs/openapi.json says: run `python frontend/hook.py types`");
    process.exit(1);
  }
} else {
  await writeFile("src/api.ts", made);
}
