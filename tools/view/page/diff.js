// Diff: this run against another one, row by row, by the numbers of dmi-dump diff. Three maps share a cursor: how far rows are apart, and the norms of both.

const DIFF_MEASURES = {error: "error: norm of the difference / norm in this run", greatest: "greatest difference of an element"};
const DIFF_HEIGHT = 220;
const diff = {at: 0, measure: "error", scale: "log", first: true, layer: 0, cell: 0, from: 0, to: 0, seen: false, cache: new Map()};

// What a map of either run has in the cells of another map of the same site: {state, value}, null where it is not in the report.
function aligned(entry, other, arrays, name) {
    if (!other || other.by_row !== entry.by_row)
        return null;
    const n = entry.layers.length * entry.cells, found = {state: new Uint8Array(n), value: new Float32Array(n)};
    entry.layers.forEach((layer, k) => {
        const row = other.layers.indexOf(layer);
        for (let cell = 0; row >= 0 && cell < entry.cells; cell++) {
            const at = Math.floor((positionOf(entry, cell) - other.first) / other.per);
            if (at < 0 || at >= other.cells)
                continue;
            found.state[k * entry.cells + cell] = arrays.state[row * other.cells + at];
            found.value[k * entry.cells + cell] = arrays[name][row * other.cells + at];
        }
    });
    return found;
}

function diffArrays(entry) {
    entry.arrays ||= decoded(entry, {error: floatsOf, greatest: floatsOf, state: bytesOf});
    return entry.arrays;
}

// The map of differences of a site of a request of this run.
function diffOf(request, site) {
    return DATA.diff ? DATA.diff.maps.find((entry) => entry.request === request && entry.site === site) : undefined;
}

// Norms of both runs in the cells of a map of differences.
function normsOf(entry) {
    const ours = DATA.maps.find((m) => m.request === entry.request && m.site === entry.site), theirs = DATA.other_maps.find((m) => m.request === entry.other_request && m.site === entry.site);
    entry.norms ||= [ours, theirs].map((m) => m ? aligned(entry, m, arraysOf(m), "norm") : null);
    return entry.norms;
}

// One scale for both runs, so that colours mean the same.
function normScale(entry) {
    const key = ["norm", diff.at, diff.scale, diff.first].join();
    if (!diff.cache.has(key)) {
        const both = normsOf(entry).filter((one) => one !== null), n = entry.layers.length * entry.cells;
        const state = new Uint8Array(both.length * n), value = new Float32Array(both.length * n);
        both.forEach((one, k) => { state.set(one.state, k * n); value.set(one.value, k * n); });
        const scale = scaleFor({...entry, layers: both.flatMap(() => entry.layers)}, state, value, diff.scale, diff.first);
        diff.cache.set(key, [0, both.length - 1].map((k) => ({...scale, of: (x, i) => scale.of(x, i + k * n)})));
    }
    return diff.cache.get(key);
}

function errorScale(entry) {
    const key = [diff.measure, diff.at, diff.scale, diff.first].join();
    if (!diff.cache.has(key))
        diff.cache.set(key, scaleFor(entry, diffArrays(entry).state, diffArrays(entry)[diff.measure], diff.scale, diff.first, 0.15));
    return diff.cache.get(key);
}

function diffDraw() {
    const entry = DATA.diff.maps[diff.at], canvas = (name) => document.getElementById(`diff-${name}`);
    if (!canvas("error"))
        return;
    drawHeat(canvas("error"), entry, diffArrays(entry).state, diffArrays(entry)[diff.measure], errorScale(entry), diff, DIFF_HEIGHT);
    normsOf(entry).forEach((norms, k) => norms && drawHeat(canvas(k ? "other" : "run"), entry, norms.state, norms.value, normScale(entry)[k], diff, DIFF_HEIGHT));
}

// What is there, in numbers by @write.
function diffSaid(entry, layer, cell, write = short) {
    const arrays = diffArrays(entry), i = layer * entry.cells + cell, norms = normsOf(entry), at = cellName(entry, layer, cell);
    const norm = (one) => one && one.state[i] === THERE ? write(one.value[i]) : "none";
    if (arrays.state[i] === ABSENT)
        return `${at}: no row in either run`;
    const wrong = WRONG.find(([state]) => state === arrays.state[i]);
    const numbers = wrong ? wrong[1] : `error ${write(arrays.error[i])}, greatest difference ${write(arrays.greatest[i])}`;
    return `${at}: ${numbers}, norm ${norm(norms[0])}, in the other run ${norm(norms[1])}`;
}

function diffColumn(entry) {
    const arrays = diffArrays(entry), norms = normsOf(entry), norm = (one, i) => one && one.state[i] === THERE ? brief(one.value[i]) : "";
    const rows = entry.layers.map((layer, k) => {
        const i = k * entry.cells + diff.cell, there = arrays.state[i] === THERE, wrong = WRONG.find(([state]) => state === arrays.state[i]);
        return [layer === null ? "" : String(layer), there ? brief(arrays.error[i]) : "", there ? brief(arrays.greatest[i]) : "", norm(norms[0], i), norm(norms[1], i), wrong ? wrong[1] : ""];
    });
    return table([["layer", true], ["error", true], ["greatest", true], ["norm", true], ["norm in the other", true], [""]], rows, `All layers at ${placeName(entry, diff.cell)}`);
}

// What each run dropped of a site: a row that one of them lacks may be among these.
function droppedOf(site) {
    const said = (sites, name) => {
        const account = sites.find((s) => s.name === site)?.account, reasons = account ? Object.entries(account.reasons).map(([reason, n]) => `${reason} ${grouped(n)}`).join(", ") : "";
        return !account ? `${name} has no site ${site}` : account.dropped + account.lost ? `${name} dropped ${counted(account.dropped, "record")} of site ${site}${reasons ? ` (${reasons})` : ""} and lost ${grouped(account.lost)}`
            : `${name} dropped no record of site ${site}`;
    };
    return `${said(DATA.sites, "This run")}. ${said(DATA.diff.accounts, "The other run")}.`;
}

// A number of dmi-dump diff; null is what is not finite.
function maybe(x) {
    return x === null ? "infinite" : brief(x);
}

function diffTensors(entry) {
    const rows = entry.tensors.filter((t) => t !== null).map((t) => [t.key, grouped(t.rows), grouped(t.same_rows), grouped(t.lacking_rows), ...(t.rows ? [t.greatest, t.mean, t.error, t.cosine].map(maybe) : ["", "", "", ""]),
        t.other_shape ? "another shape" : t.passes ? "the same" : ""]);
    return rows.length ? table([["tensor", "wide"], ["rows", true], ["same bits", true], ["only here", true], ["greatest", true], ["mean", true], ["error", true], ["cosine", true], [""]], rows, "Tensors") : null;
}

function diffSites(toSite) {
    const first = (f) => f === null ? "" : `${f.tensor}${f.position === null ? "" : ` at ${f.position}`}`;
    const rows = DATA.diff.sites.map((s) => [make("button", {text: s.site, onclick: () => toSite(s.site)}), grouped(s.layers), grouped(s.tensors), grouped(s.differing), grouped(s.rows), grouped(s.same_rows),
        ...[s.greatest, s.mean, s.error, s.least_cosine].map(maybe), first(s.first)]);
    return table([["site"], ["layers", true], ["tensors", true], ["differing", true], ["rows", true], ["same bits", true], ["greatest", true], ["mean", true], ["error", true], ["least cosine", true], ["first", "wide"]], rows, "Differences by site");
}

// The place where they part first, or null: nothing differs, or its map is left out.
function firstPlace() {
    const at = DATA.diff.first_at, map = at ? DATA.diff.maps.findIndex((m) => m.request === at.request && m.site === at.site) : -1;
    if (map < 0)
        return null;
    const entry = DATA.diff.maps[map], position = DATA.diff.first.position;
    return {map, layer: entry.layers.indexOf(at.layer), cell: position === null || entry.by_row ? 0 : Math.floor((position - entry.first) / entry.per)};
}

function goFirst() {
    const place = firstPlace();
    if (place) {
        [diff.at, diff.layer, diff.cell, diff.from, diff.to] = [place.map, place.layer, place.cell, 0, DATA.diff.maps[place.map].cells];
        diffShow();
    }
    return Boolean(place);
}

function diffVerdict() {
    const d = DATA.diff, first = d.first, only = (list) => list.map((x) => `${x.site} (${grouped(x.tensors)})`).join(", ");
    const same = d.compared === 0 ? "Nothing could be compared: the runs have no tensor of the same name." : d.equal ? `All ${counted(d.compared, "tensor")} are the same, in ${counted(d.rows, "row")}.`
        : `${grouped(d.differing)} of ${counted(d.compared, "tensor")} differ; ${grouped(d.same_rows)} of ${counted(d.rows, "row")} have the same bits.`;
    const where = first === null ? "" : `In the order of launches the runs first differ at ${first.tensor}${first.position === null ? "" : `, position ${first.position}`}, element ${first.element}: this run has ${first.run === null ? "infinite" : exact(first.run)}, the other run ${first.other === null ? "infinite" : exact(first.other)}. `;
    const lines = [[d.only_in_run, "Tensors that only this run has, by site"], [d.only_in_other, "Tensors that only the other run has, by site"]].filter(([list]) => list.length).map(([list, what]) => make("p", {text: `${what}: ${only(list)}`}));
    return make("section", {}, make("table", {"aria-label": "The runs"}, ...[["this run", DATA.run.path], ["the other run", d.path]].map(([name, text]) => make("tr", {}, make("th", {scope: "row", text: name}), make("td", {class: "wide", text})))),
        make("p", {class: d.equal ? "good" : null, text: same}), first === null ? null : make("p", {}, where, firstPlace() ? make("button", {text: "go there", onclick: goFirst}) : null), ...lines,
        d.rows_only_in_other ? make("p", {text: `The other run has ${counted(d.rows_only_in_other, "row")} that this run lacks, in tensors that both have.`}) : null,
        ...(d.findings.length ? [make("p", {text: "Findings of the other run:"}), findingList(d.findings)] : []),
        d.unreadable_rows ? make("p", {class: "bad", text: `${counted(d.unreadable_rows, "row")} cannot be decoded and ${d.unreadable_rows === 1 ? "is" : "are"} not compared.`}) : null);
}

function diffMoved() {
    const entry = DATA.diff.maps[diff.at];
    settle(entry, diff);
    sayAt("diff-readout", diffSaid, entry, diff.layer, diff.cell);
    document.getElementById("diff-column").replaceChildren(diffColumn(entry));
    document.getElementById("diff-legend").replaceChildren(legendOf(errorScale(entry), diff.scale, false, WRONG));
    document.getElementById("diff-norms").replaceChildren(legendOf(normScale(entry)[0], diff.scale, false, [[DAMAGED, "damaged"]]));
    diffDraw();
    go("diff", entry.request, entry.site, diff.measure, diff.scale, diff.first ? "all" : "later", diff.layer, diff.cell);
}

// Takes the place of an address. Return: whether it is another map than before.
function takeDiff(place) {
    const [request, site, measure, scale, first, layer, cell] = place, before = diff.at, maps = DATA.diff.maps;
    const found = maps.findIndex((entry) => String(entry.request) === request && (site === undefined || entry.site === site));
    diff.at = found >= 0 ? found : Math.min(diff.at, maps.length - 1);
    diff.measure = Object.hasOwn(DIFF_MEASURES, measure) ? measure : diff.measure;
    diff.scale = Object.hasOwn(SCALES, scale) ? scale : diff.scale;
    diff.first = first === undefined ? diff.first : first !== "later";
    [diff.layer, diff.cell] = [whole(layer, diff.layer), whole(cell, diff.cell)];
    if (diff.at !== before || diff.to === 0)
        [diff.from, diff.to] = [0, maps[diff.at].cells];
    return diff.at !== before;
}

function diffMap(name, title, entry, there) {
    if (!there)
        return make("section", {}, make("h2", {text: title}), make("p", {class: "faint", text: "This report has no map of the site for this run."}));
    const at = (event) => cellAt(event, entry, diff, DIFF_HEIGHT), hover = document.getElementById("diff-hover");
    const canvas = make("canvas", {id: `diff-${name}`, tabindex: 0, role: "img", "aria-label": `${title}, ${entry.site}: layers down, positions across. Arrow keys move the cursor in all maps; the text above says what is there`,
        onclick: (event) => { const place = at(event); if (place) { [diff.layer, diff.cell] = place; diffMoved(); } },
        onmousemove: (event) => { const place = at(event); hover.textContent = place ? diffSaid(entry, ...place) : ""; }, onmouseleave: () => { hover.textContent = ""; }});
    return make("section", {}, make("h2", {text: title}), make("div", {}, canvas));
}

function diffControls(entry, to) {
    const maps = DATA.diff.maps, requests = maps.filter((m, i) => i === maps.findIndex((o) => o.request === m.request)), set = (name) => (value) => { diff[name] = value; diffMoved(); };
    const box = make("input", {type: "checkbox", checked: !diff.first, onchange: () => { diff.first = !box.checked; diffMoved(); }});
    return make("div", {class: "controls"},
        choice("Request", requests.map((m) => [m.request, requestName(m)]), entry.request, (value) => {
            const of = (m) => m.request === Number(value), same = maps.findIndex((m) => of(m) && m.site === entry.site);
            to(same >= 0 ? same : maps.findIndex(of));
        }),
        choice("Site", maps.filter((m) => m.request === entry.request).map((m) => [m.site, m.site]), entry.site, (value) => to(maps.findIndex((m) => m.request === entry.request && m.site === value))),
        choice("Measure", Object.entries(DIFF_MEASURES), diff.measure, set("measure")), choice("Scale", Object.entries(SCALES), diff.scale, set("scale")),
        make("label", {}, box, " leave the first token out of the scale"));
}

function diffShow() {
    const main = document.getElementById("main"), entry = DATA.diff.maps[diff.at];
    const to = (at) => { [diff.at, diff.from, diff.to] = [at, 0, DATA.diff.maps[at].cells]; diffShow(); };
    const toSite = (site) => { const at = DATA.diff.maps.findIndex((m) => m.site === site && m.request === entry.request); to(at >= 0 ? at : Math.max(0, DATA.diff.maps.findIndex((m) => m.site === site))); };
    main.replaceChildren(diffVerdict());
    if (entry === undefined) {
        main.append(make("p", {text: "No map of differences is in this report."}));
        return;
    }
    main.append(diffControls(entry, to), make("div", {id: "diff-legend"}), make("div", {class: "readout", id: "diff-readout", "aria-live": "polite"}), make("div", {class: "readout faint", id: "diff-hover"}),
        make("p", {class: "faint", id: "diff-dropped", text: droppedOf(entry.site)}));
    main.append(diffMap("error", "How far rows are apart", entry, true), make("div", {id: "diff-norms"}),
        diffMap("run", "This run: norms", entry, normsOf(entry)[0]), diffMap("other", "The other run: norms", entry, normsOf(entry)[1]));
    main.append(make("div", {id: "diff-column"}), make("h2", {text: "By layer"}), diffTensors(entry) || make("p", {class: "faint", text: "The numbers of each tensor did not fit into this report."}), make("h2", {text: "By site"}), diffSites(toSite));
    diffMoved();
}

if (DATA.diff) {
    PAGES.diff = {
        title: "Diff",
        keys: [...HEAT_KEYS, ["f", "where the runs first differ"]],
        show(main, place) {
            const first = diff.seen || place.length ? null : firstPlace();
            diff.seen = true;
            if (first !== null)
                [diff.at, diff.layer, diff.cell] = [first.map, first.layer, first.cell];
            if (DATA.diff.maps.length)
                takeDiff(place);
            diffShow();
        },
        move(place) {
            const before = [diff.measure, diff.scale, diff.first, diff.layer, diff.cell].join();
            return Boolean(document.getElementById("diff-error")) && !takeDiff(place) && [diff.measure, diff.scale, diff.first, diff.layer, diff.cell].join() === before;
        },
        key(event) {
            const entry = DATA.diff.maps[diff.at];
            if (event.key === "f")
                return goFirst();
            if (entry === undefined || !heatKey(event, entry, diff))
                return false;
            diffMoved();
            return true;
        },
    };
    addEventListener("resize", diffDraw);
}
