// Overview: what ran, what became of its records, its requests, what a reader should know.

// @columns: [[title, is a number, or "wide" of long texts]]; @rows: lists of texts or elements.
function table(columns, rows, label) {
    const cell = (tag, [, kind], what) => make(tag, {class: kind === true ? "number" : kind}, what);
    return make("div", {class: "scroll"}, make("table", {"aria-label": label}, make("thead", {}, make("tr", {}, ...columns.map((column) => cell("th", column, column[0])))),
        make("tbody", {}, ...rows.map((row) => make("tr", {}, ...row.map((what, i) => cell("td", columns[i], what)))))));
}

function facts(run) {
    const ended = {closed: "closed: all that it captured is there", running: "a process still writes it", killed: "its process ended without closing it"};
    const rows = [["state", ended[run.state] || run.state], ["model", run.model], ["host", run.host], ["process", run.pid], ["uuid", run.uuid],
        ["began", new Date(run.start_ns / 1e6).toISOString()], ["library", run.library], ["ranks", run.runs > 1 ? `${run.runs} runs, joined` : null],
        ["files", `${counted(run.segments, "segment")}, ${size(run.file_bytes)}`],
        ["records", `${grouped(run.records)} of ${counted(run.forwards, "forward")}, ${counted(run.steps, "step")} that the engine named`]];
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
const A_PAGE = 50;

// A table to sort and to filter, of which only a page is in the document.
function requests(all) {
    let by = -1, up = true, from = 0, filter = "";
    const place = make("div"), many = new Set(DATA.maps.map((map) => map.request));
    const cells = (r, i) => REQUEST_COLUMNS.map(([key, number]) => key === "id" && many.has(i) ? make("a", {href: `#map/${i}`, text: r.id})
        : key === "bytes" ? size(r.bytes) : r[key] === null ? "" : number === true ? grouped(r[key]) : r[key]);
    const order = (i, k) => {
        const key = REQUEST_COLUMNS[by][0], a = all[i][key], b = all[k][key];
        return (up ? 1 : -1) * (a === b ? i - k : a === null ? -1 : b === null ? 1 : a < b ? -1 : 1);
    };
    function draw() {
        const wanted = all.map((r, i) => i).filter((i) => !filter || REQUEST_COLUMNS.some(([key]) => String(all[i][key]).toLowerCase().includes(filter)));
        if (by >= 0)
            wanted.sort(order);
        from = Math.max(0, Math.min(from, wanted.length - 1));
        from -= from % A_PAGE;
        const head = REQUEST_COLUMNS.map(([title, number], i) => [make("button", {text: title + (i === by ? (up ? " \u25b2" : " \u25bc") : ""), "aria-label": `sort by ${title}`,
            onclick: () => { up = by !== i || !up; by = i; draw(); }}), number]);
        const to = Math.min(from + A_PAGE, wanted.length);
        place.replaceChildren(table(head, wanted.slice(from, to).map((i) => cells(all[i], i)), "Requests"), make("div", {class: "controls"},
            make("span", {text: wanted.length ? `${grouped(from + 1)} to ${grouped(to)} of ${grouped(wanted.length)}` : "none"}),
            make("button", {text: "before", disabled: from === 0, onclick: () => { from -= A_PAGE; draw(); }}),
            make("button", {text: "after", disabled: to >= wanted.length, onclick: () => { from += A_PAGE; draw(); }})));
    }
    draw();
    const input = make("input", {type: "search", "aria-label": "Filter requests", placeholder: "filter", oninput: () => { filter = input.value.toLowerCase(); from = 0; draw(); }});
    return make("section", {}, make("div", {class: "controls"}, input), place);
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
            ...section("Findings", DATA.findings, (rows) => make("ul", {}, ...rows.map((f) => make("li", {class: f.damage ? "bad" : null,
                text: `${f.damage ? "damage: " : ""}${f.file === null ? "" : `${f.file}, offset ${f.offset}: `}${f.text}`})))),
            ...section("Problems that the run reports of itself", DATA.problems, (rows) => list(rows.map((p) =>
                `${p.site === null ? "" : `${p.site}, `}${p.reason}: ${p.sentence} (${grouped(p.times)} times)`))),
            ...section("Changes while it was written", DATA.changes, (rows) => list(rows.map((c) => `before launch ${c.launch}: ${c.what}`))),
            make("h2", {text: "Records: captured + dropped + lost = expected"}),
            table([["site", "wide"], ["type"], ["rows", true], ["bytes", true], ...ACCOUNT, ["note", "wide"]], [...DATA.sites.map((s) =>
                [s.name, s.dtype, grouped(s.account.rows), size(s.account.bytes), ...balance(s.account), s.note === null ? "" : s.note]),
            [make("strong", {text: "all"}), "", grouped(DATA.total.rows), size(DATA.total.bytes), ...balance(DATA.total), ""]], "Sites"),
            ...(DATA.requests.length ? [make("h2", {text: "Requests"}), requests(DATA.requests)] : []));
    },
};
