// Builds the page into ../dist, or into the directory that is named: three files whose bytes
// depend on the sources and on package-lock.json alone.
import { build } from "esbuild";
import { copyFile, mkdir, rm } from "node:fs/promises";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const out = resolve(process.argv[2] ?? join(here, "../dist"));

await rm(out, { recursive: true, force: true });
await mkdir(join(out, "assets"), { recursive: true });
await build({
  absWorkingDir: here,
  entryPoints: { app: "src/main.tsx" },
  outdir: join(out, "assets"),
  bundle: true,
  minify: true,
  format: "esm",
  target: ["chrome111", "firefox115", "safari16.4"],
  jsx: "automatic",
  jsxImportSource: "preact",
  charset: "ascii", // no byte of the result depends on how it is served
  legalComments: "inline",
  logLevel: "warning",
});
for (const [from, to] of [["index.html", "index.html"], ["icon.svg", "assets/icon.svg"]]) {
  await copyFile(join(here, "src", from), join(out, to));
}
