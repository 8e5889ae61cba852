// Heads: what each head does, by the scores of docs/heads.md.

const SCORES = {
    previous: "mean weight of the token before", duplicate: "of the first occurrence of the same token", induction: "of what came after the same token", sink: "of the first token",
    entropy: "mean of -sum w ln w", distance: "mean distance, in tokens", mul_previous: "TransformerLens's mul", mul_duplicate: "the same", mul_induction: "the same",
    abs_previous: "TransformerLens's abs", abs_duplicate: "the same", abs_induction: "the same",
};
const heads = {at: 0, order: {by: -1, up: false}, layer: "all", least: ""};

// Arrays of an entry of attention, once they are looked at.
function headsOf(entry) {
    if (!entry.read && entry.refused === undefined) {
        const pairs = (all) => ({queries: integersOf(all.queries), keys: integersOf(all.keys), weights: floatsOf(all.weights)});
        entry.read = {positions: integersOf(entry.positions), errors: doublesOf(entry.errors), thumbnails: bytesOf(entry.thumbnails), pairs: pairs(entry.pairs), later: pairs(entry.pairs_but_first),
            scores: Object.fromEntries(Object.keys(SCORES).map((name) => [name, doublesOf(entry.scores[name])])), whole: new Map(), begins: []};
        for (const pattern of entry.patterns.heads)
            entry.read.whole.set(entry.layers.indexOf(pattern.layer) * entry.heads + pattern.head, pattern);
        let n = 0;
        for (const position of entry.read.positions.subarray(entry.patterns.first_query)) {
            entry.read.begins.push(n);
            n += position - entry.patterns.first_key + 1;
        }
    }
    return entry.read;
}

function headName(entry, i) {
    return `${entry.layers[Math.floor(i / entry.heads)]}.${i % entry.heads}`;
}

function proofText(entry) {
    const proof = entry.proof, borrowed = entry.borrowed ? ` ${counted(entry.borrowed, "position")} ${entry.borrowed === 1 ? "has" : "have"} rows of another request, which a prefix cache had.` : "";
    const text = proof.error === null ? "Not checked: v or z was not captured." : `${proof.state === "holds" ? "Checked" : "Not checked everywhere"}: A v = z ${proof.state === "holds" ? "holds, " : ""}`
        + `off by ${short(proof.error)} of z's norm at most (head ${proof.layer}.${proof.head}); ${short(proof.bound)} is allowed.`;
    return text + borrowed + editsSentence(entry.request);
}

// The choice of a request, and what its proof says. @chosen(number of the entry)
function attentionTop(at, chosen) {
    const entry = DATA.attention[at];
    return [choice("Request", DATA.attention.map((e, i) => [i, requestName(e)]), at, (value) => chosen(Number(value))),
        entry.refused === undefined ? make("p", {class: "faint", id: "proof", text: proofText(entry)}) : refusal(entry.refused)];
}

// A word as a shell takes it.
function quoted(word) {
    return /^[\w./@%+=:,][\w./@%+=:,-]*$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;
}

// What lacks is told with the command that gives it; what the proof refuses is no lack.
function refusal(why) {
    const config = why.includes("--config"), lacks = config || why.includes("no row of");
    const line = config ? `dmi-view ${quoted(DATA.run.path)} --config config.json -o report.html --force` : "dmi-run --preset attention --out RUN -- COMMAND";
    return make("div", {}, make("p", {class: lacks ? null : "bad", id: "proof", text: `${lacks ? "No attention of this request" : "Refused"}: ${why}.`}),
        ...(lacks ? [make("p", {text: config ? "With the model's config.json, or its GGUF:" : "To capture what it takes:"}), make("code", {class: "paste", text: line})] : []));
}

// The number of the entry that an address names, by the request's number or its id; -1: none.
function attentionEntry(request) {
    const found = DATA.attention.findIndex((entry) => String(entry.request) === request);
    return found >= 0 ? found : DATA.attention.findIndex((entry) => entry.id === request);
}

function goHeads() {
    const {by, up} = heads.order;
    go("heads", DATA.attention[heads.at].request, by > 0 ? Object.keys(SCORES)[by - 1] ?? "error" : by === 0 ? "head" : "-", up ? "up" : "down", heads.layer, heads.least);
}

function headColumns(entry) {
    const {scores, errors} = headsOf(entry), link = (i) => make("a", {href: `#attention/${entry.request}/${headName(entry, i).replace(".", "/")}`, text: headName(entry, i)});
    return [["head", true, (i) => i, link], ...Object.keys(SCORES).map((name) => [name, "best", (i) => scores[name][i], (i) => Number.isNaN(scores[name][i]) ? "" : brief(scores[name][i])]),
        ["error", true, (i) => errors[i], (i) => Number.isNaN(errors[i]) ? "" : brief(errors[i])]];
}

function takeHeads(place) {
    const [request, kind, way, layer, least] = place, found = attentionEntry(request), names = ["head", ...Object.keys(SCORES), "error"];
    heads.at = found >= 0 ? found : heads.at;
    if (kind === undefined)
        return;
    [heads.order.by, heads.order.up] = [names.indexOf(kind), way === "up"];
    heads.layer = (DATA.attention[heads.at].layers ?? []).some((l) => String(l) === layer) ? layer : "all";
    heads.least = Number.isFinite(Number(least)) ? least : "";
}

if (DATA.attention.length)
    PAGES.heads = {
        title: "Heads",
        keys: [],
        show(main, place) {
            takeHeads(place);
            const entry = DATA.attention[heads.at], again = () => { main.replaceChildren(); PAGES.heads.show(main, []); };
            const [request, proof] = attentionTop(heads.at, (at) => { heads.at = at; heads.layer = "all"; again(); });
            if (entry.refused !== undefined) {
                main.append(make("div", {class: "controls"}, request), proof);
                goHeads();
                return;
            }
            const columns = headColumns(entry), ranked = () => columns[heads.order.by > 0 ? heads.order.by : 1];
            const wanted = (i) => (heads.layer === "all" || String(entry.layers[Math.floor(i / entry.heads)]) === heads.layer) && (heads.least === "" || ranked()[2](i) >= Number(heads.least));
            const rows = sortable(columns, entry.layers.length * entry.heads, "Heads", heads.order, wanted, () => { rows.draw(); goHeads(); });
            const least = make("input", {type: "number", step: "any", value: heads.least, "aria-label": "At least", oninput: () => { heads.least = least.value; rows.draw(); goHeads(); }});
            main.append(make("div", {class: "controls"}, request, choice("Layer", [["all", "all"], ...entry.layers.map((l) => [l, String(l)])], heads.layer, (value) => { heads.layer = value; rows.draw(); goHeads(); }),
                make("label", {}, "At least ", least)), proof,
            make("p", {class: "faint", text: `${grouped(entry.repeated)} of ${counted(entry.queries, "token")} occurred earlier in the request${entry.repeated ? "" : ": duplicate and induction are not defined"}. `
                + "A click on a column's name ranks the heads by it; \u201cAt least\u201d leaves out heads below that number in it. A click on a head shows its attention."}), rows.place);
            goHeads();
        },
    };
