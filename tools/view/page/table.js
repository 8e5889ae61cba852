// Tables: plain ones, and those that are sorted and filtered.

// @columns: [[title, is a number, or "wide" of long texts]]; @rows: lists of texts or elements.
function table(columns, rows, label) {
    const cell = (tag, [, kind], what) => make(tag, {class: kind === true ? "number" : kind}, what);
    return make("div", {class: "scroll"}, make("table", {"aria-label": label}, make("thead", {}, make("tr", {}, ...columns.map((column) => cell("th", column, column[0])))),
        make("tbody", {}, ...rows.map((row) => make("tr", {}, ...row.map((what, i) => cell("td", columns[i], what)))))));
}

const A_PAGE = 50;

// What is shown, and where that is not all, buttons to the rest. @turn(-1 or 1)
function pager(text, from, to, n, turn) {
    const buttons = from === 0 && to >= n ? [] : [make("button", {text: "previous", disabled: from === 0, onclick: () => turn(-1)}), make("button", {text: "next", disabled: to >= n, onclick: () => turn(1)})];
    return make("div", {class: "controls"}, make("span", {text}), ...buttons);
}

// A table to sort, of which only a page is in the document. @columns: [[title, kind, value, cell]]: kinds of table(), or "best" of numbers of
// which the largest come first; the last two are functions of a row's number; no cell: the value is shown. @at:
// {by, up} of the column that it is sorted by, -1: none; @wanted(i): is the row shown? @moved(): another column was chosen. What is null or NaN comes last.
function sortable(columns, n, label, at, wanted, moved = () => {}) {
    let from = 0;
    const place = make("div"), kindOf = ([, kind]) => kind === "best" || kind, lacks = (x) => x === null || Number.isNaN(x);
    const order = (i, k) => {
        const a = columns[at.by][2](i), b = columns[at.by][2](k);
        if (lacks(a) || lacks(b))
            return lacks(a) - lacks(b) || i - k;
        return a === b ? i - k : (at.up ? 1 : -1) * (a < b ? -1 : 1);
    };
    function draw() {
        const rows = Array.from({length: n}, (_, i) => i).filter(wanted);
        if (at.by >= 0)
            rows.sort(order);
        from = Math.max(0, Math.min(from, rows.length - 1));
        from -= from % A_PAGE;
        const head = columns.map((column, i) => [make("button", {text: column[0] + (i === at.by ? (at.up ? " \u25b2" : " \u25bc") : ""), "aria-label": `sort by ${column[0]}`,
            onclick: () => { at.up = at.by === i ? !at.up : column[1] !== "best"; at.by = i; draw(); moved(); }}), kindOf(column)]);
        const to = Math.min(from + A_PAGE, rows.length);
        place.replaceChildren(table(head, rows.slice(from, to).map((i) => columns.map(([, , value, cell]) => (cell || value)(i))), label),
            pager(rows.length ? `${grouped(from + 1)} to ${grouped(to)} of ${grouped(rows.length)}` : "none", from, to, rows.length, (by) => { from += by * A_PAGE; draw(); }));
    }
    draw();
    return {place, draw: () => { from = 0; draw(); }};
}
