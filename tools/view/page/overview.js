// Overview, for who looks for a minute: is all well, what was asked, what is wrong; then the accounts and what ran.

function facts(run) {
    const ended = {closed: "closed: all that it captured is there", running: "a process still writes it", killed: "its process ended without closing it"};
    const rows = [["model", run.model], ["state", ended[run.state] || run.state], ["folder", run.path], ["host", run.host], ["process", run.pid], ["uuid", run.uuid],
        ["began", new Date(run.start_ns / 1e6).toISOString()], ["library", run.library], ["ranks", run.runs > 1 ? `${run.runs} runs, joined` : null],
        ["files", `${counted(run.segments, "segment")}, ${size(run.file_bytes)}`],
        ["records", `${grouped(run.records)} of ${counted(run.forwards, "forward")}; the engine named ${counted(run.steps, "step")}`]];
    return make("table", {"aria-label": "The run"}, ...rows.filter(([, what]) => what !== null && what !== undefined).map(([name, what]) =>
        make("tr", {}, make("th", {scope: "row", text: name}), make("td", {class: "wide", text: String(what)}))));
}

// [all is well, the first sentence of the report]
function verdict() {
    const {run, total} = DATA, damaged = DATA.findings.filter((f) => f.damage).length, some = (n, what, verb) => n ? `${counted(n, what)} ${n === 1 ? "was" : "were"} ${verb}` : null;
    const reasons = Object.entries(total.reasons).map(([reason, n]) => `${reason} ${grouped(n)}`).join(", "), of = DATA.requests.length ? ` of ${counted(DATA.requests.length, "request")}` : "";
    const wrong = [damaged ? `${counted(damaged, "place")} in its files ${damaged === 1 ? "is" : "are"} damaged` : null, some(total.dropped, "record", `dropped${reasons ? ` (${reasons})` : ""}`), some(total.lost, "record", "lost"),
        total.balances === false && !total.lost ? "the account does not balance" : null, run.state === "killed" ? "its process ended without closing it" : null,
        DATA.problems.length ? `the run reports ${counted(DATA.problems.length, "problem")} of itself` : null].filter((text) => text !== null);
    const there = `${grouped(total.captured)} of ${counted(total.expected, "record")}${of}`;
    if (wrong.length)
        return [false, `Not all is well: ${wrong.length > 1 ? `${wrong.slice(0, -1).join(", ")}, and ${wrong.at(-1)}` : wrong[0]}. ${there} ${total.captured === 1 ? "is" : "are"} there.`];
    if (total.balances === null)
        return [true, `${counted(total.captured, "record")}${of} ${total.captured === 1 ? "is" : "are"} there; whether that is all of them is not known, as the counters of the run cannot be read.`];
    return [true, total.captured === 0 ? "Nothing is wrong, and nothing was captured."
        : `${run.state === "running" ? "All is well so far: a process still writes the run, and " : "All is well: "}${total.captured === 1 ? "the 1 record" : `all ${counted(total.captured, "record")}`}${of} ${total.captured === 1 ? "is" : "are"} there.`];
}

function balance(account) {
    const reasons = Object.entries(account.reasons).map(([reason, n]) => `${reason} ${grouped(n)}`).join(", ");
    const text = account.balances === null ? "not known" : account.balances ? "balances" : "MISMATCH";
    return [grouped(account.expected), grouped(account.captured), grouped(account.dropped), reasons, grouped(account.lost),
        make("span", {class: account.balances ? "good" : account.balances === null ? "faint" : "bad", text})];
}

const ACCOUNT = [["expected", true], ["captured", true], ["dropped", true], ["reasons", "wide"], ["lost", true], [""]];
const REQUEST_COLUMNS = [["id", "wide"], ["state"], ["tokens", true], ["prompt", true], ["generated", true], ["cached", true], ["draft", true], ["rejected", true], ["steps", true],
    ["rows", true], ["bytes", true], ["tags", "wide"]];
function requests(all) {
    let filter = "";
    const many = new Set(DATA.maps.map((map) => map.request));
    const shown = (key, kind) => (i) => key === "id" && many.has(i) ? make("a", {href: `#map/${i}`, text: all[i].id})
        : key === "bytes" ? size(all[i].bytes) : all[i][key] === null ? "" : kind === true ? grouped(all[i][key]) : all[i][key];
    const columns = REQUEST_COLUMNS.filter(([key], k) => k < 5 || all.some((request) => request[key])).map(([key, kind]) => [key, kind, (i) => all[i][key], shown(key, kind)]);
    const rows = sortable(columns, all.length, "Requests", {by: -1, up: true}, (i) => !filter || REQUEST_COLUMNS.some(([key]) => String(all[i][key]).toLowerCase().includes(filter)));
    const input = make("input", {type: "search", "aria-label": "Filter requests", placeholder: "filter", oninput: () => { filter = input.value.toLowerCase(); rows.draw(); }});
    return make("section", {}, make("div", {class: "controls"}, input), rows.place);
}

// "calm (...): in 3 requests"
function editCounts() {
    const of = new Map();
    for (const text of [...DATA.requests.map((r) => r.edits || []), DATA.edits_of_nobody].flat())
        of.set(text, (of.get(text) || 0) + 1);
    return [...of].map(([text, n]) => `${text}${n > 1 ? `, and so in ${n} requests` : ""}`);
}

function findingList(findings) {
    return make("ul", {}, ...findings.map((f) => make("li", {class: f.damage ? "bad" : null, text: `${f.damage ? "damage: " : ""}${f.file === null ? "" : `${f.file}, offset ${f.offset}: `}${f.text}`})));
}

function section(title, rows, made) {
    return rows.length ? [make("h2", {text: title}), made(rows)] : [];
}

// A table's columns and rows without the columns that are empty in all rows.
function filled(columns, rows) {
    const kept = columns.map((_, i) => rows.some((row) => row[i] !== "" && row[i] !== undefined));
    return [columns, ...rows].map((row) => row.filter((_, i) => kept[i]));
}

function accounts() {
    const rows = DATA.sites.map((s) => [s.name, s.dtype ?? "", grouped(s.account.rows), size(s.account.bytes), ...balance(s.account), s.note === null ? "" : s.note]);
    const [columns, ...shown] = filled([["site", "wide"], ["type"], ["rows", true], ["bytes", true], ...ACCOUNT, ["note", "wide"]], [...rows,
        [make("strong", {text: "all"}), "", grouped(DATA.total.rows), size(DATA.total.bytes), ...balance(DATA.total), ""]]);
    return table(columns, shown, "Sites");
}

PAGES.overview = {
    title: "Overview",
    show(main) {
        const list = (rows) => make("ul", {}, ...rows.map((text) => make("li", {text}))), [good, sentence] = verdict();
        main.append(make("p", {id: "verdict", class: good ? "good" : "bad", text: sentence}),
            ...(DATA.requests.length ? [make("h2", {text: "Requests"}), requests(DATA.requests)] : []),
            ...section("Findings", DATA.findings, findingList),
            ...section("Problems that the run reports of itself", DATA.problems, (rows) => list(rows.map((p) =>
                `${p.site === null ? "" : `${p.site}, `}${p.reason}: ${p.sentence} (${p.times === 1 ? "once" : `${grouped(p.times)} times`})`))),
            ...section("Left out of this report", DATA.left_out, list),
            ...section("Edits that wrote in requests: what is computed after them, in later layers and tokens, was computed with them", editCounts(), list),
            ...section("Changes while the run was written", DATA.changes, (rows) => list(rows.map((c) => `before launch ${c.launch}: ${c.what}`))),
            make("h2", {text: "Records: captured + dropped + lost = expected"}), accounts(),
            make("h2", {text: "The run"}), facts(DATA.run));
    },
};
