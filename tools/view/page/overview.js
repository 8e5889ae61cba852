// Overview: what ran, what became of its records, its requests, what a reader should know.

function facts(run) {
    const ended = {closed: "closed: all that it captured is there", running: "a process still writes it", killed: "its process ended without closing it"};
    const rows = [["state", ended[run.state] || run.state], ["model", run.model], ["host", run.host], ["process", run.pid], ["uuid", run.uuid],
        ["began", new Date(run.start_ns / 1e6).toISOString()], ["library", run.library], ["ranks", run.runs > 1 ? `${run.runs} runs, joined` : null],
        ["files", `${counted(run.segments, "segment")}, ${size(run.file_bytes)}`],
        ["records", `${grouped(run.records)} of ${counted(run.forwards, "forward")}; the engine named ${counted(run.steps, "step")}`]];
    return make("table", {"aria-label": "The run"}, ...rows.filter(([, what]) => what !== null && what !== undefined).map(([name, what]) =>
        make("tr", {}, make("th", {scope: "row", text: name}), make("td", {class: "wide", text: String(what)}))));
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
    const columns = REQUEST_COLUMNS.map(([key, kind]) => [key, kind, (i) => all[i][key], shown(key, kind)]);
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

PAGES.overview = {
    title: "Overview",
    show(main) {
        const list = (rows) => make("ul", {}, ...rows.map((text) => make("li", {text})));
        main.append(make("h2", {text: "The run"}), facts(DATA.run),
            ...section("Left out of this report", DATA.left_out, list),
            ...section("Findings", DATA.findings, findingList),
            ...section("Edits that wrote in requests: what is computed after them, in later layers and tokens, was computed with them", editCounts(), list),
            ...section("Problems that the run reports of itself", DATA.problems, (rows) => list(rows.map((p) =>
                `${p.site === null ? "" : `${p.site}, `}${p.reason}: ${p.sentence} (${grouped(p.times)} times)`))),
            ...section("Changes while the run was written", DATA.changes, (rows) => list(rows.map((c) => `before launch ${c.launch}: ${c.what}`))),
            make("h2", {text: "Records: captured + dropped + lost = expected"}),
            table([["site", "wide"], ["type"], ["rows", true], ["bytes", true], ...ACCOUNT, ["note", "wide"]], [...DATA.sites.map((s) =>
                [s.name, s.dtype, grouped(s.account.rows), size(s.account.bytes), ...balance(s.account), s.note === null ? "" : s.note]),
            [make("strong", {text: "all"}), "", grouped(DATA.total.rows), size(DATA.total.bytes), ...balance(DATA.total), ""]], "Sites"),
            ...(DATA.requests.length ? [make("h2", {text: "Requests"}), requests(DATA.requests)] : []));
    },
};
