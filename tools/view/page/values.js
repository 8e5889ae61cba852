// Values: rows as they were captured, and what they stand for.

const SIZES = {f32: 4, f16: 2, bf16: 2, f64: 8, i8: 1, i16: 2, i32: 4, i64: 8, u8: 1, u16: 2, u32: 4, u64: 8, bool: 1, f8e4m3: 1, f8e5m2: 1};
const ELEMENTS_A_PAGE = 64;

function half(bits) {
    const sign = bits & 0x8000 ? -1 : 1, exponent = bits >> 10 & 31, fraction = bits & 1023;
    if (exponent === 31)
        return fraction ? NaN : sign * Infinity;
    return sign * (exponent ? (1 + fraction / 1024) * 2 ** (exponent - 15) : fraction / 1024 * 2 ** -14);
}

function e4m3(bits) {
    const sign = bits & 128 ? -1 : 1, exponent = bits >> 3 & 15, fraction = bits & 7;
    if ((bits & 127) === 127)
        return NaN;
    return sign * (exponent ? (1 + fraction / 8) * 2 ** (exponent - 7) : fraction / 8 * 2 ** -6);
}

const READERS = {
    f32: (v, at) => v.getFloat32(at, true), f64: (v, at) => v.getFloat64(at, true), f16: (v, at) => half(v.getUint16(at, true)),
    bf16: (v, at) => { const wide = new DataView(new ArrayBuffer(4)); wide.setUint16(2, v.getUint16(at, true), true); return wide.getFloat32(0, true); },
    i8: (v, at) => v.getInt8(at), i16: (v, at) => v.getInt16(at, true), i32: (v, at) => v.getInt32(at, true), i64: (v, at) => v.getBigInt64(at, true),
    u8: (v, at) => v.getUint8(at), u16: (v, at) => v.getUint16(at, true), u32: (v, at) => v.getUint32(at, true), u64: (v, at) => v.getBigUint64(at, true),
    bool: (v, at) => v.getUint8(at) ? 1 : 0, f8e4m3: (v, at) => e4m3(v.getUint8(at)), f8e5m2: (v, at) => half(v.getUint8(at) << 8),
};

// The first tensor that is shown has floats, if any has.
const values = {at: Math.max(0, DATA.values.findIndex((tensor) => /^b?f[0-9]/.test(tensor.rows[0]?.dtype ?? ""))), row: 0, from: 0};

// [[index, bytes, stored, true]] of the elements that a row has in the report.
function elementsOf(row, from, n) {
    const width = SIZES[row.dtype];
    row.bytes ||= bytesOf(row.data);
    const view = new DataView(row.bytes.buffer), found = [];
    for (let i = from; i < Math.min(from + n, row.bytes.length / width); i++) {
        const stored = READERS[row.dtype](view, i * width), scaled = row.scale === 1 ? stored : Number(stored) / row.scale;
        const hex = Array.from(row.bytes.subarray(i * width, (i + 1) * width), (b) => b.toString(16).padStart(2, "0")).join(" ");
        found.push([i, hex, stored, scaled]);
    }
    return found;
}

function rowText(row) {
    return `row ${row.row}${row.position === null ? "" : `, position ${row.position}`}`;
}

function valuesTable(tensor, row, redraw) {
    if (row.damaged)
        return make("p", {class: "bad", text: "This row is damaged: it cannot be decoded."});
    const n = (row.bytes ||= bytesOf(row.data)).length / SIZES[row.dtype], to = Math.min(values.from + ELEMENTS_A_PAGE, n), shape = tensor.shape.slice(1);
    const place = (i) => shape.length < 2 ? String(i) : `${i} [${shape.map((_, k) => Math.floor(i / shape.slice(k + 1).reduce((a, b) => a * b, 1)) % shape[k]).join(", ")}]`;
    const rows = elementsOf(row, values.from, ELEMENTS_A_PAGE).map(([i, hex, stored, scaled]) => [place(i), make("span", {class: "mono", text: hex}), brief(stored), brief(scaled)]);
    const turn = (by) => { values.from = Math.max(0, values.from + by * ELEMENTS_A_PAGE); redraw(); };
    return make("section", {}, make("p", {text: `${row.dtype}, ${counted(row.width, "element")} a row${n < row.width ? `, of which the report has the first ${n}` : ""}; `
        + `stored value = true value * ${exact(row.scale)}; captured at launch ${row.launch}${row.step === null ? "" : `, step ${row.step}`}${row.edited ? "; an edit wrote this row" : ""}.${editsSentence(tensor.request)}`}),
    table([["element", true], ["bytes"], ["stored", true], ["true", true]], rows, "Values"),
    pager(n ? `elements ${values.from} to ${to - 1} of ${n}` : "none", values.from, to, n, turn));
}

PAGES.values = {
    title: "Values",
    keys: [["left, right", "the row before, after"], ["[ ]", "the tensor before, after"]],
    show(main, place) {
        if (!DATA.values.length) {
            main.append(make("p", {text: "No tensor is in this report."}));
            return;
        }
        const [request, name, row] = place, found = DATA.values.findIndex((t) => String(t.request) === request && t.name === name);
        if (found >= 0 && (found !== values.at || row !== undefined))
            [values.at, values.row, values.from] = [found, Number(row) || 0, found === values.at ? values.from : 0];
        const tensor = DATA.values[values.at];
        values.row = Math.max(0, Math.min(values.row, tensor.rows.length - 1));
        const redraw = () => { main.replaceChildren(); PAGES.values.show(main, []); };
        const set = (at, r) => { [values.at, values.row, values.from] = [at, r, 0]; redraw(); };
        const requests = DATA.values.filter((t, i) => i === DATA.values.findIndex((o) => o.request === t.request)).map((t) => [t.request, requestName(t)]);
        const tensors = DATA.values.map((t, i) => [i, t.name]).filter(([i]) => DATA.values[i].request === tensor.request);
        main.append(make("div", {class: "controls"}, choice("Request", requests, tensor.request, (value) => set(DATA.values.findIndex((t) => t.request === Number(value)), 0)),
            choice("Tensor", tensors, values.at, (value) => set(Number(value), 0)),
            choice("Row", tensor.rows.map((r, i) => [i, rowText(r)]), values.row, (value) => set(values.at, Number(value)))),
        make("p", {class: "faint", text: `shape [${tensor.shape.join(", ")}]; dmi-view --values ${tensor.name} puts all of its rows here, with all elements`}));
        main.append(tensor.rows.length ? valuesTable(tensor, tensor.rows[values.row], redraw) : make("p", {text: "This report has no row of the tensor."}));
        go("values", tensor.request, tensor.name, values.row);
    },
    move(place) {
        const [request, name, row] = place, tensor = DATA.values[values.at];
        return Boolean(tensor) && String(tensor.request) === request && tensor.name === name && Number(row) === values.row;
    },
    key(event) {
        const main = document.getElementById("main"), n = DATA.values.length, step = {"[": -1, "]": 1}[event.key], row = {ArrowLeft: -1, ArrowRight: 1}[event.key];
        if (!n || (!step && !row))
            return false;
        if (step)
            [values.at, values.row, values.from] = [(values.at + step + n) % n, 0, 0];
        else
            [values.row, values.from] = [values.row + row, 0];
        main.replaceChildren();
        PAGES.values.show(main, []);
        return true;
    },
};
