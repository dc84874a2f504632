// Bundles the page into the folder named: index.html, and parts whose names have their hash in them.
import { createHash } from "node:crypto";
import { mkdir, readFile, rm, writeFile } from "node:fs/promises";
import { basename, join } from "node:path";
import * as esbuild from "esbuild";

const out = process.argv[2] ?? "../src/penstock/server/static";
await rm(out, { recursive: true, force: true });
await mkdir(out, { recursive: true });
const result = await esbuild.build({
  entryPoints: { app: "src/main.tsx" },
  outdir: out,
  bundle: true,
  splitting: true,
  format: "esm",
  minify: true,
  target: "es2022",
  jsx: "automatic",
  jsxImportSource: "preact",
  entryNames: "[name]-[hash]",
  chunkNames: "part-[hash]",
  legalComments: "none",
  metafile: true,
  logLevel: "warning",
});
const made = Object.keys(result.metafile.outputs).map((path) => basename(path));
const entry = Object.entries(result.metafile.outputs).find(([, one]) => one.entryPoint === "src/main.tsx");
if (entry === undefined) throw new Error("esbuild made no entry");
const icon = await readFile("src/icon.svg");
const iconName = `icon-${createHash("sha256").update(icon).digest("hex").slice(0, 8).toUpperCase()}.svg`;
await writeFile(join(out, iconName), icon);
const page = (await readFile("index.html", "utf8"))
  .replace("app.js", basename(entry[0]))
  .replace("app.css", made.find((name) => /^app-.*\.css$/.test(name)))
  .replace("icon.svg", iconName);
await writeFile(join(out, "index.html"), page);
