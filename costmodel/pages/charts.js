"use strict";
/* Fills Bokeh's figures from binary columns and draws what the zoom shows. */
const Meshwright = (() => {
  const TYPES = { float32: Float32Array, uint8: Uint8Array, uint16: Uint16Array,
    uint32: Uint32Array };
  const COLOURS = { F: "#3b82c4", B: "#e08a2e", I: "#e0a83a", W: "#8d6fc2",
    OVERLAP_F_B: "#c95f7f", REDUCE: "#2d9a6b", STEP: "#c33b3b", GATHER: "#5aa7a7" };
  const SENT = "#7f8896";
  const PARTS = ["#3b82c4", "#8d6fc2", "#e08a2e", "#e0a83a", "#c95f7f", "#5aa7a7",
    "#2d9a6b", "#8a93a3", "#c33b3b", "#8a5a44"];
  const ROLES = { recommended: "#c33b3b", alternative: "#e08a2e", front: "#3b82c4" };
  const DRAWN = 6000;  /* actions that are drawn one by one */
  const BINS = 250;    /* else: blocks as wide as this part of what is shown */
  const charts = {};
  let actions = null, waiting = false;

  function decoded(column) {
    const text = atob(column.base64), bytes = new Uint8Array(text.length);
    for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
    return new TYPES[column.type](bytes.buffer);
  }
  function model(chart, name) { return charts[chart].doc.get_model_by_name(name); }
  function seconds(value) {
    if (value >= 1) return value.toPrecision(4) + " s";
    if (value >= 1e-3) return (value * 1e3).toPrecision(4) + " ms";
    return (value * 1e6).toPrecision(4) + " µs";
  }

  /* The first action of a rank that ends after a time: starts rise, none overlap. */
  function first(from, to, time) {
    while (from < to) {
      const middle = (from + to) >> 1;
      if (actions.start[middle] + actions.length[middle] < time) from = middle + 1;
      else to = middle;
    }
    return from;
  }
  function before(from, to, time) {
    while (from < to) {
      const middle = (from + to) >> 1;
      if (actions.start[middle] <= time) from = middle + 1; else to = middle;
    }
    return from;
  }
  function words(i) {
    const name = actions.names[actions.kind[i]], long = actions.kinds[name];
    if (["REDUCE", "STEP", "GATHER"].includes(name)) return long;
    const more = actions.joined > 1 ? `${actions.joined} actions, mostly ` : "";
    return `${more}${long}, stage ${actions.stage[i]}, micro-batch ${actions.micro[i]}`;
  }
  function drawTimeline() {
    waiting = false;
    if (!actions || !charts.timeline) return;
    const range = charts.timeline.figure.x_range, low = range.start, high = range.end;
    const ranks = actions.offsets.length - 1, windows = [];
    let visible = 0;
    for (let rank = 0; rank < ranks; rank++) {
      const end = actions.offsets[rank + 1];
      const from = first(actions.offsets[rank], end, low), to = before(from, end, high);
      windows.push([from, to]); visible += to - from;
    }
    const wide = visible > DRAWN ? (high - low) / BINS : 0;
    const out = { left: [], right: [], top: [], bottom: [], color: [], what: [],
      time: [] };
    function add(rank, left, right, kind, what) {
      out.left.push(left); out.right.push(right);
      out.top.push(rank - 0.42); out.bottom.push(rank + 0.42);
      out.color.push(COLOURS[actions.names[kind]]);
      out.what.push(`rank ${rank}: ${what}`);
      out.time.push(`${seconds(left)} + ${seconds(right - left)}`);
    }
    windows.forEach(([from, to], rank) => {
      let i = from;
      while (i < to) {
        const left = actions.start[i];
        if (actions.length[i] >= wide) {
          add(rank, left, left + actions.length[i], actions.kind[i], words(i));
          i++; continue;
        }
        const spent = new Float64Array(actions.names.length);
        let right = left, busy = 0, count = 0;
        while (i < to && actions.start[i] + actions.length[i] - left <= wide
            && actions.start[i] - right <= wide / 4) {
          right = actions.start[i] + actions.length[i];
          spent[actions.kind[i]] += actions.length[i]; busy += actions.length[i];
          count++; i++;
        }
        let most = 0;
        spent.forEach((time, kind) => { if (time > spent[most]) most = kind; });
        const share = Math.round(100 * busy / Math.max(right - left, 1e-12));
        add(rank, left, right, most, count === 1 ? words(i - 1)
          : `${count} actions, mostly ${actions.kinds[actions.names[most]]}, ` +
            `busy ${share} %`);
      }
    });
    const sent = wide ? null : actions.transfers;
    for (let i = 0; sent && i < sent.labels.length; i++) {
      const left = sent.start[i], right = left + sent.length[i];
      if (right < low || left > high) continue;
      out.left.push(left); out.right.push(right);
      out.top.push(sent.rank[i] + 0.43); out.bottom.push(sent.rank[i] + 0.5);
      out.color.push(SENT); out.what.push(sent.labels[i]);
      out.time.push(`${seconds(left)} + ${seconds(right - left)}`);
    }
    model("timeline", "timeline").renderers[0].data_source.data = out;
    const note = document.getElementById("timeline-note");
    if (note) {
      note.textContent = wide
        ? `${visible.toLocaleString("en")} actions in view, drawn as blocks of up to ` +
          `${seconds(wide)} by the kind that takes most of each; zoom in for each one.`
        : `${visible.toLocaleString("en")} actions in view, each one drawn.`;
      if (actions.joined > 1) note.textContent +=
        ` The file holds ${actions.joined} neighbouring actions as one.`;
    }
  }
  function later() {
    if (!waiting) { waiting = true; requestAnimationFrame(drawTimeline); }
  }
  function limits(range, start, end) {
    range.setv({ bounds: null }, { silent: true });
    range.setv({ start, end, reset_start: start, reset_end: end });
  }
  const fill = {
    curves(data, name) { legend(name, data.legend); },
    timeline(data) {
      actions = { start: decoded(data.start_s), length: decoded(data.seconds),
        kind: decoded(data.kind), stage: decoded(data.stage),
        micro: decoded(data.micro_batch), offsets: data.offsets, kinds: data.kinds,
        names: Object.keys(data.kinds), joined: data.joined,
        transfers: data.transfers && { rank: decoded(data.transfers.rank),
          start: decoded(data.transfers.start_s),
          length: decoded(data.transfers.seconds), labels: data.transfers.labels } };
      const figure = charts.timeline.figure, ranks = data.offsets.length - 1;
      limits(figure.y_range, ranks - 0.5, -0.5);
      limits(figure.x_range, 0, data.makespan_s);
      const kinds = data.present.map((name) => [data.kinds[name], COLOURS[name]]);
      if (data.transfers?.labels.length) kinds.push(["transfer (thin, below)", SENT]);
      legend("timeline", kinds);
      drawTimeline();
    },
    memory(data) {
      const lines = { xs: [], ys: [], color: [], width: [], rank: [], peak: [] };
      const last = data.lines.length - 1;
      const most = data.lines.reduce((a, b) => (b.peak_gib > a.peak_gib ? b : a));
      data.lines.forEach((line, i) => {
        const share = last ? i / last : 0;
        lines.xs.push(decoded(line.time_s)); lines.ys.push(decoded(line.gib));
        lines.color.push(`hsl(${210 - 170 * share} 60% 52%)`);
        lines.width.push(line === most ? 2.5 : 1.2);
        lines.rank.push(line.rank); lines.peak.push(line.peak_gib);
      });
      const figure = charts.memory.figure, end = data.makespan_s;
      figure.renderers[0].data_source.data = lines;
      figure.renderers[1].data_source.data =
        { x: [0, end], y: [data.capacity_gib, data.capacity_gib] };
      const high = Math.max(data.capacity_gib, most.peak_gib);
      limits(figure.x_range, 0, end); limits(figure.y_range, 0, high * 1.08);
      const entries = [["rank 0", lines.color[0]]];
      if (last) entries.push([`rank ${data.lines[last].rank}`, lines.color[last]]);
      entries.push([`fullest: rank ${most.rank} (thick)`, lines.color[
        data.lines.indexOf(most)]], ["capacity (dashed)", "#c33b3b"]);
      legend("memory", entries);
    },
    breakdown(data) {
      const total = data.seconds.reduce((a, b) => a + b, 0), parts = [];
      data.names.forEach((name, i) => {
        if (data.seconds[i] > 0) parts.push([name.replaceAll("_", " "),
          data.seconds[i], PARTS[i]]);
      });
      parts.sort((a, b) => a[1] - b[1]);
      const figure = charts.breakdown.figure;
      figure.y_range.factors = parts.map((part) => part[0]);
      figure.renderers[0].data_source.data = { name: parts.map((part) => part[0]),
        seconds: parts.map((part) => part[1]), color: parts.map((part) => part[2]),
        share: parts.map((part) => (100 * part[1] / total).toFixed(1) + " %") };
    },
    pareto(data) {
      const figure = charts.pareto.figure, points = data.points;
      figure.renderers[1].data_source.data = {
        x: points.map((p) => p.gib), y: points.map((p) => p.tokens),
        layout: points.map((p) => p.layout), role: points.map((p) => p.role),
        color: points.map((p) => ROLES[p.role]),
        size: points.map((p) => (p.role === "recommended" ? 14 : 9)) };
      const front = points.filter((p) => p.on_front).sort((a, b) => a.gib - b.gib);
      figure.renderers[0].data_source.data =
        { x: front.map((p) => p.gib), y: front.map((p) => p.tokens) };
      const high = Math.max(...points.map((p) => p.tokens)) * 1.08;
      const wide = Math.max(data.capacity_gib, ...points.map((p) => p.gib)) * 1.05;
      figure.renderers[2].data_source.data =
        { x: [data.capacity_gib, data.capacity_gib], y: [0, high] };
      limits(figure.x_range, 0, wide); limits(figure.y_range, 0, high);
      legend("pareto", [["recommended", ROLES.recommended],
        ["alternative", ROLES.alternative],
        ["fastest within less memory", ROLES.front], ["front", "#7f8896"],
        ["capacity (dashed)", "#c33b3b"]]);
    },
  };
  function legend(chart, entries) {
    const list = document.getElementById(`${chart}-legend`);
    if (!list) return;
    list.replaceChildren(...entries.map(([name, colour]) => {
      const item = document.createElement("li"), box = document.createElement("i");
      box.style.background = colour;
      item.append(box, name);
      return item;
    }));
  }

  function theme(printing) {
    const dark = !printing && matchMedia("(prefers-color-scheme: dark)").matches;
    const ink = dark ? "#d7dce5" : "#2a3342", grid = dark ? "#3a4250" : "#e1e5ec";
    for (const { figure } of Object.values(charts)) {
      for (const one of [...figure.below, ...figure.left, ...figure.center]) {
        const set = {};
        for (const name of ["axis_label_text_color", "major_label_text_color",
          "axis_line_color", "major_tick_line_color"])
          if (name in one.properties) set[name] = ink;
        if ("minor_tick_line_color" in one.properties) set.minor_tick_line_color = null;
        if ("grid_line_color" in one.properties) set.grid_line_color = grid;
        if ("axis_label_text_font_style" in one.properties)
          set.axis_label_text_font_style = "normal";
        one.setv(set);
      }
    }
  }
  function zoom(chart, how) {
    const range = charts[chart].figure.x_range;
    const whole = range.reset_end - range.reset_start, wide = range.end - range.start;
    const middle = (range.start + range.end) / 2;
    let width = wide, centre = middle;
    if (how === "in") width = wide / 2;
    if (how === "out") width = Math.min(wide * 2, whole);
    if (how === "left") centre = middle - wide / 3;
    if (how === "right") centre = middle + wide / 3;
    if (how === "all") { width = whole; centre = range.reset_start + whole / 2; }
    centre = Math.min(Math.max(centre, range.reset_start + width / 2),
      range.reset_end - width / 2);
    range.setv({ start: centre - width / 2, end: centre + width / 2 });
  }
  async function embed(items) {
    for (const [name, item] of Object.entries(items)) {
      const target = document.getElementById(`${name}-chart`);
      if (!target) continue;
      const known = new Set(Bokeh.documents);
      await Bokeh.embed.embed_item(item, target);
      const doc = Bokeh.documents.find((one) => !known.has(one));
      charts[name] = { doc, figure: doc.get_model_by_name(name) };
    }
    if (charts.timeline) {
      const range = charts.timeline.figure.x_range;
      range.properties.start.change.connect(later);
      range.properties.end.change.connect(later);
    }
    theme(false);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change",
      () => theme(false));
    addEventListener("beforeprint", () => theme(true));
    addEventListener("afterprint", () => theme(false));
    document.addEventListener("click", (event) => {
      const button = event.target.closest("button[data-zoom]");
      if (button) zoom(...button.dataset.zoom.split(":"));
    });
  }
  function show(series) {
    for (const [name, data] of Object.entries(series))
      if (charts[name] && data) (fill[name] ?? fill.curves)(data, name);
  }
  async function start() {
    const text = document.getElementById("charts");
    if (!text) return;
    const { items, series } = JSON.parse(text.textContent);
    await embed(items);
    show(series);
    document.documentElement.dataset.ready = "yes";
  }
  addEventListener("DOMContentLoaded", start);
  return { show, charts, zoom };
})();
