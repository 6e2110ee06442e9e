"use strict";
/* Controls ↔ URL ↔ answers: one question on its way at a time, the latest next. */
(() => {
  const by = (id) => document.getElementById(id);
  const controls = [...document.querySelectorAll("#controls [name]")];
  let busy = false, next = false, answer = null, planned = null;

  const values = (control) => JSON.parse(control.dataset.values);
  function value(control) {
    return control.type === "range" ? values(control)[Number(control.value)]
      : control.value || null;
  }
  function set(control, to) {
    if (control.type !== "range") { control.value = to === null ? "" : to; return; }
    const all = values(control);
    let at = all.indexOf(to);
    if (at < 0 && typeof to === "number" && Number.isFinite(to)) {
      all.push(to);
      all.sort((a, b) => (a === null ? -1 : b === null ? 1 : a - b));
      control.dataset.values = JSON.stringify(all);
      control.max = all.length - 1;
      at = all.indexOf(to);
    }
    control.value = Math.max(at, 0);
  }
  function words(control) {
    const one = value(control);
    if (one === null) return "default";
    return one >= 1e9 ? one.toExponential(1).replace("e+", "e") : one.toLocaleString("en");
  }
  function label() {
    for (const control of controls) {
      const output = control.parentElement.querySelector("output");
      if (output) output.textContent = words(control);
    }
  }
  function state() {
    const found = {};
    for (const control of controls) {
      const one = value(control);
      if (one !== null) found[control.name] = one;
    }
    return found;
  }
  function toUrl(now) {
    history.replaceState(null, "", "?" + new URLSearchParams(now));
  }
  function fromUrl() {
    const asked = new URLSearchParams(location.search);
    for (const control of asked.size ? controls : []) {
      const text = asked.get(control.name);
      set(control, text === null ? null
        : control.type === "range" ? Number(text) : text);
    }
  }
  async function post(where, question) {
    const reply = await fetch(where, { method: "POST", body: JSON.stringify(question),
      headers: { "Content-Type": "application/json" } });
    const document = await reply.json();
    if (!reply.ok) throw new Error(document.error);
    return document;
  }

  /* Sections are made and escaped by the server; charts stay where they are. */
  function renew(name, html) {
    const content = document.querySelector(`#${name} > .content`);
    if (!content) return;
    const made = document.createElement("template");
    made.innerHTML = html;
    const here = content.querySelector("figure");
    const there = made.content.querySelector("figure");
    if (!here || !there) { content.replaceChildren(made.content); return; }
    here.setAttribute("aria-label", there.getAttribute("aria-label"));
    here.querySelector("figcaption").textContent =
      there.querySelector("figcaption").textContent;
    const open = content.querySelector("details[open]") !== null;
    content.querySelectorAll(":scope > :not(figure)").forEach((one) => one.remove());
    there.remove();
    content.append(made.content);
    if (open) content.querySelector("details").open = true;
  }
  function show(found) {
    for (const [name, html] of Object.entries(found.sections)) renew(name, html);
    Meshwright.show(found.series);
  }
  async function ask() {
    label();
    if (busy) { next = true; return; }
    busy = true;
    const now = state(), began = performance.now();
    toUrl(now);
    try {
      answer = await post("simulate", now);
      by("lead").textContent = answer.lead;
      by("lead").className = answer.fits ? "lead" : "lead bad";
      by("error").textContent = "";
      by("command").textContent = answer.command + (answer.exact ? ""
        : "   # the changed links, price or failures are in the layout file");
      show(answer);
      by("status").textContent = `answered in ${Math.round(performance.now() - began)} ms`;
    } catch (error) {
      answer = null;
      by("error").textContent = error.message;
      by("lead").textContent = "";
    }
    busy = false;
    document.documentElement.dataset.answers =
      Number(document.documentElement.dataset.answers || 0) + 1;
    if (next) { next = false; ask(); }
  }
  async function plan() {
    by("status").textContent = "planning …";
    by("plan").disabled = true;
    try {
      planned = await post("plan", state());
      for (const control of controls) {
        if (control.name in planned.pins) set(control, planned.pins[control.name]);
        if (control.name === "global_batch" && value(control) === null)
          set(control, planned.global_batch);
      }
      document.documentElement.dataset.planned = "yes";
      show(planned);
      await ask();
      const own = planned.estimate.step_time_s, here = answer?.estimate.step_time_s;
      by("status").textContent =
        `planned in ${planned.seconds.toFixed(1)} s, gap ${(100 * planned.gap).toFixed(2)} %` +
        (here && Math.abs(here / own - 1) < 1e-3 ? "" : `; the plan takes ` +
          `${own.toPrecision(4)} s: it has what no control says (plan --out writes it)`);
    } catch (error) {
      by("error").textContent = error.message;
      by("status").textContent = "";
    }
    by("plan").disabled = false;
  }
  function save() {
    if (!answer) return;
    const text = JSON.stringify(answer.layout, null, 1) + "\n";
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type: "application/json" }));
    link.download = "layout.json";
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }
  async function copy() {
    if (!answer) return;
    try {
      await navigator.clipboard.writeText(answer.command);
      by("status").textContent = "copied";
    } catch { getSelection().selectAllChildren(by("command")); }
  }
  function start() {
    fromUrl();
    for (const control of controls) control.addEventListener("input", ask);
    by("controls").addEventListener("submit", (event) => event.preventDefault());
    by("plan").addEventListener("click", plan);
    by("save").addEventListener("click", save);
    by("copy").addEventListener("click", copy);
    const ready = setInterval(() => {
      if (document.documentElement.dataset.ready === "yes") { clearInterval(ready); ask(); }
    }, 20);
  }
  addEventListener("DOMContentLoaded", start);
})();
