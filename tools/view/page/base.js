// The data of the report, what all pages share, and which page is shown. Text that comes from a run becomes text nodes, and nothing else.

const DATA = JSON.parse(document.getElementById("data").textContent);
const PAGES = {};  // name: {title, show(main, place), key(event), keys: [[key, what]]}; place: what the address has after the name

// An element with its text, attributes (on...: listeners) and children.
function make(tag, has = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(has)) {
        if (name.startsWith("on"))
            made.addEventListener(name.slice(2), value);
        else if (name === "text")
            made.textContent = value;
        else if (value !== undefined && value !== null && value !== false)
            made.setAttribute(name, value === true ? "" : value);
    }
    made.append(...children.filter((child) => child !== null && child !== undefined));
    return made;
}

function bytesOf(base64) {
    if (Uint8Array.fromBase64)
        return Uint8Array.fromBase64(base64);
    const text = atob(base64), found = new Uint8Array(text.length);
    for (let i = 0; i < text.length; i++)
        found[i] = text.charCodeAt(i);
    return found;
}

// Elements are little-endian in the report, whatever the machine is that reads it.
const NATIVE = new Uint8Array(new Uint16Array([1]).buffer)[0] === 1;

function floatsOf(base64) {
    const bytes = bytesOf(base64), view = new DataView(bytes.buffer), found = new Float32Array(NATIVE ? bytes.buffer : bytes.length / 4);
    for (let i = 0; !NATIVE && i < found.length; i++)
        found[i] = view.getFloat32(4 * i, true);
    return found;
}

// Arrays of an entry, each decoded when it is first used. @readers: {name: function of its base64}
function decoded(entry, readers) {
    const found = {};
    for (const [name, read] of Object.entries(readers))
        Object.defineProperty(found, name, {configurable: true, get() {
            const value = read(entry[name]);
            Object.defineProperty(found, name, {value});
            return value;
        }});
    return found;
}

function doublesOf(base64) {
    const bytes = bytesOf(base64), view = new DataView(bytes.buffer), found = new Float64Array(bytes.length / 8);
    for (let i = 0; i < found.length; i++)
        found[i] = view.getFloat64(8 * i, true);
    return found;
}

// A number that reads back as the same.
function exact(x) {
    return typeof x === "bigint" || Number.isFinite(x) ? String(x) : Number.isNaN(x) ? "NaN" : x > 0 ? "Infinity" : "-Infinity";
}

// In four digits, but for whole numbers.
function short(x) {
    if (typeof x === "bigint" || !Number.isFinite(x))
        return exact(x);
    if (Number.isInteger(x) && Math.abs(x) < 1e6)
        return String(x);
    return Math.abs(x) >= 1e5 || Math.abs(x) < 1e-3 ? x.toExponential(2) : String(Number(x.toPrecision(4)));
}

// The same; all digits are its title.
function brief(x) {
    return make("span", {text: short(x), title: exact(x)});
}

function grouped(n) {
    return Number(n).toLocaleString("en");
}

function counted(n, what) {
    return `${grouped(n)} ${what}${n === 1 ? "" : "s"}`;
}

function size(n) {
    const units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
    let k = 0;
    for (; n >= 1024 && k + 1 < units.length; k++)
        n /= 1024;
    return `${k ? n.toFixed(1) : n} ${units[k]}`;
}

// What edits wrote in a request, in words. @request: its number, -1: none.
function editsOf(request) {
    return (request < 0 ? DATA.edits_of_nobody : DATA.requests[request]?.edits) || [];
}

function requestName(entry) {
    return (entry.id === null ? "(no request)" : entry.id) + (editsOf(entry.request).length ? " (edited)" : "");
}

// A sentence for answers about a request; "" where no edit wrote in it.
function editsSentence(request) {
    const edits = editsOf(request);
    return edits.length ? ` Edits wrote in this request: ${edits.join(", ")}.` : "";
}

// A labelled choice. @options: [[value, text]].
function choice(label, options, value, chosen) {
    const select = make("select", {onchange: () => chosen(select.value), "aria-label": label});
    for (const [key, text] of options)
        select.append(make("option", {value: key, text, selected: String(key) === String(value)}));
    return make("label", {}, `${label} `, select);
}

// ---- where we are

// The address says it, so that a link shows what its sender saw: #page/part/part.
function placeOf(hash) {
    try {
        return hash.slice(1).split("/").map(decodeURIComponent);
    } catch (error) {
        return [];
    }
}

function go(...parts) {
    location.replace(`#${parts.map((part) => encodeURIComponent(String(part))).join("/")}`);
}

let shown = null;

function show() {
    const [name, ...place] = placeOf(location.hash);
    const page = Object.hasOwn(PAGES, name) ? name : "overview", main = document.getElementById("main");
    for (const link of document.querySelectorAll("#pages a"))
        link.dataset.page === page ? link.setAttribute("aria-current", "page") : link.removeAttribute("aria-current");
    if (shown === page && PAGES[page].move && PAGES[page].move(place))
        return;
    shown = page;
    main.replaceChildren();
    PAGES[page].show(main, place);
}

function help() {
    const dialog = document.getElementById("help"), rows = [["?", "this list"], ["1 to 9", "the page of that number"], ...(PAGES[shown].keys || [])];
    dialog.replaceChildren(make("h2", {text: "Keys"}), make("table", {}, ...rows.map(([key, what]) =>
        make("tr", {}, make("th", {text: key}), make("td", {text: what})))), make("button", {text: "Close", onclick: () => dialog.close()}));
    dialog.showModal();
}

function begin() {
    const names = Object.keys(PAGES);
    document.getElementById("title").append(make("span", {text: `DMI report: ${DATA.run.model || DATA.run.path.split("/").at(-1)}`, title: DATA.run.path}));
    document.getElementById("pages").append(...names.map((name) => make("a", {href: `#${name}`, "data-page": name, text: PAGES[name].title})));
    addEventListener("hashchange", show);
    addEventListener("keydown", (event) => {
        if (event.ctrlKey || event.metaKey || event.altKey || (event.target instanceof Element && event.target.closest("input, select, dialog")))
            return;
        if (event.key === "?")
            help();
        else if (event.key >= "1" && event.key <= String(names.length))
            go(names[event.key - 1]);
        else if (!PAGES[shown].key || !PAGES[shown].key(event))
            return;
        event.preventDefault();
    });
    show();
}
