// Attribution: what embedding, heads and MLPs add to the difference of two logits, as `python -m dmi dla` computed it.

const dla = {at: 0, token: 0, order: {by: -1, up: false}};

function partsOf(entry) {
    if (!entry.read) {
        entry.read = Object.fromEntries(["embedding", "heads", "mlps", "biases", "constant", "sum", "difference", "of_edits"].filter((name) => entry[name] !== undefined).map((name) => [name, doublesOf(entry[name])]));
        entry.read.token_ids = entry.token_ids === undefined ? null : integersOf(entry.token_ids);
    }
    return entry.read;
}

// Names of the two words.
function dlaWords(entry) {
    const {tokens} = parsed(entry.parameters);
    return [0, 1].map((i) => Array.isArray(tokens) && Number.isInteger(tokens[i]) ? `\u2018${word(entry, tokens[i])}\u2019` : "?");
}

// All parts at the chosen token: {name, value, place in the address of a head's attention}.
function dlaParts(entry) {
    const read = partsOf(entry), {layers, n_heads} = entry, at = dla.token, found = [{name: "embedding", value: read.embedding[at]}, {name: "constant", value: read.constant[at]}];
    for (let l = 0; l < layers; l++) {
        for (let h = 0; h < n_heads; h++)
            found.push({name: `head ${l}.${h}`, value: read.heads[(at * layers + l) * n_heads + h], head: `${l}/${h}`});
        found.push({name: `mlp ${l}`, value: read.mlps[at * layers + l]}, {name: `bias ${l}`, value: read.biases[at * layers + l]});
    }
    const edits = parsed(entry.edits), n = Array.isArray(edits) ? edits.length : 0;
    for (let i = 0; read.of_edits !== undefined && i < n; i++)
        found.push({name: `edit ${plain(edits[i]?.name)}`, value: read.of_edits[at * n + i]});
    return found.filter((part) => part.value !== 0 && part.value !== undefined);
}

// Layers down; heads, then the MLP, across: the shade is the share of the largest part.
function dlaGrid(entry) {
    const read = partsOf(entry), {layers, n_heads} = entry, at = dla.token, cells = (l) => [...read.heads.subarray((at * layers + l) * n_heads, (at * layers + l + 1) * n_heads), read.mlps[at * layers + l]];
    const most = dlaParts(entry).reduce((m, part) => part.name.startsWith("head") || part.name.startsWith("mlp") ? Math.max(m, Math.abs(part.value)) : m, 0) || 1, wide = n_heads > 24;
    const rows = Array.from({length: layers}, (_, l) => make("tr", {}, make("th", {scope: "row", text: String(l)}), ...cells(l).map((value, h) => {
        const cell = make("td", {class: "number", title: `${h < n_heads ? `head ${l}.${h}` : `mlp ${l}`}: ${exact(value)}`, text: wide ? "" : value.toFixed(2)});
        shade(cell, Number.isFinite(value) ? value / most : 0);
        return cell;
    })));
    return make("div", {class: "scroll"}, make("table", {class: "lens", "aria-label": "What heads and MLPs add, layers down"}, make("thead", {}, make("tr", {}, make("th", {text: "layer"}),
        ...Array.from({length: n_heads}, (_, h) => make("th", {scope: "col", text: String(h)})), make("th", {scope: "col", text: "mlp"}))), make("tbody", {}, ...rows)));
}

function dlaTable(entry, redraw) {
    const parts = dlaParts(entry), known = DATA.attention.some((other) => other.request === entry.request);
    const name = (i) => known && parts[i].head ? make("a", {href: `#attention/${entry.request}/${parts[i].head}/${entry.positions[dla.token]}`, text: parts[i].name}) : parts[i].name;
    if (dla.order.by < 0)
        parts.sort((a, b) => Math.abs(b.value) - Math.abs(a.value));
    return sortable([["part", false, (i) => parts[i].name, name], ["logits", "best", (i) => parts[i].value, (i) => brief(parts[i].value)]], parts.length, "Parts", dla.order, () => true, redraw).place;
}

function dlaDraw() {
    const entry = DATA.dla[dla.at], read = partsOf(entry), [a, b] = dlaWords(entry);
    dla.token = Math.max(0, Math.min(dla.token, entry.positions.length - 1));
    const token = read.token_ids && read.token_ids[dla.token] >= 0 ? ` \u2018${word(entry, read.token_ids[dla.token])}\u2019` : "", difference = read.difference[dla.token];
    const said = (write) => `position ${entry.positions[dla.token]}${token}: the logit of ${a} less that of ${b} is ${Number.isNaN(difference) ? "not known" : write(difference)}; the parts sum up to ${write(read.sum[dla.token])}`;
    sayAt("dla-readout", (write = short) => said(write));
    document.getElementById("dla-grid").replaceChildren(make("h2", {text: "Heads, and the MLP, by layer"}), dlaGrid(entry));
    document.getElementById("dla-parts").replaceChildren(make("h2", {text: "Parts, the largest first"}), dlaTable(entry, () => {}));
    go("dla", entry.request, entry.positions[dla.token]);
}

function takeDla(place) {
    const [request, position] = place, found = DATA.dla.findIndex((entry) => String(entry.request) === request), before = dla.at;
    dla.at = found >= 0 ? found : dla.at;
    const at = DATA.dla[dla.at].positions.indexOf(Number(position));
    if (position !== undefined && at >= 0)
        dla.token = at;
    else if (before !== dla.at || !dla.seen)
        dla.token = DATA.dla[dla.at].positions.length - 1;
    dla.seen = true;
}

if (DATA.dla.length)
    PAGES.dla = {
        title: "Attribution",
        keys: [["left, right", "the token before, after"], ["Home, End", "the first, the last token"]],
        show(main, place) {
            takeDla(place);
            const entry = DATA.dla[dla.at], [a, b] = dlaWords(entry), to = (value) => { dla.at = Number(value); dla.token = Infinity; main.replaceChildren(); PAGES.dla.show(main, []); };
            main.append(make("div", {class: "controls"}, choice("Answer", DATA.dla.map((e, i) => [i, `${requestName(e)}: ${dlaWords(e).join(", ")}`]), dla.at, to)),
                make("p", {class: "faint", text: `What each part of the model adds to the logit of ${a} less that of ${b}, with the scale of the last norm held fixed. Blue parts favour ${a}, orange parts ${b}. ${checksOf(entry)}`}),
                make("div", {class: "readout", id: "dla-readout", "aria-live": "polite"}), make("div", {class: "beside"}, make("div", {id: "dla-grid"}), make("div", {id: "dla-parts"})));
            dlaDraw();
        },
        move(place) {
            const [request, position] = place, entry = DATA.dla[dla.at];
            return String(entry.request) === request && Number(position) === entry.positions[dla.token] && position !== undefined;
        },
        key(event) {
            const step = {ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity}[event.key];
            if (!step)
                return false;
            dla.token = Math.max(0, Math.min(dla.token + step, DATA.dla[dla.at].positions.length - 1));
            dlaDraw();
            return true;
        },
    };
