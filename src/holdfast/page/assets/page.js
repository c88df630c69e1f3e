// What the page does beyond its text: parts that changed, light and dark, keys, all epochs in one plot.
// It makes no HTML of its own: parts come from the server, escaped there.
"use strict";

const root = document.documentElement;
const events = () => document.getElementById("main")?.dataset.events;
let source = null;
let isHeld = false;

function live(state) {
  const shown = document.getElementById("live");
  if (shown) shown.dataset.state = state;
}

// --- light and dark ---------------------------------------------------------------------------------------------
function setTheme(theme) {
  if (theme) root.dataset.theme = theme; else delete root.dataset.theme;
  try { localStorage.setItem("holdfast-theme", theme || ""); } catch { /* private windows */ }
  plotEpochs(true);
}
function otherTheme() {
  const isDark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  setTheme(isDark ? "light" : "dark");
}

// --- parts that changed ------------------------------------------------------------------------------------------
function element(html) {
  const template = document.createElement("template");
  template.innerHTML = html;
  return template.content.firstElementChild;
}
function isTyped(part) {
  const at = document.activeElement;
  return part.contains(at) && at.matches("input");
}
function take(said) {
  const main = document.getElementById("main");
  for (const id of said.gone) document.getElementById(id)?.remove();
  for (const id of said.order) {
    const html = said.parts[id];
    const before = document.getElementById(id);
    if (html === undefined || (before && (isTyped(before) || before.outerHTML === html))) continue;
    const after = element(html);
    if (!after) continue;
    const scrolled = before?.querySelector(".scroll")?.scrollLeft || 0;
    const focused = before?.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
    if (before) before.replaceWith(after);
    else {
      const next = said.order.slice(said.order.indexOf(id) + 1).map((each) => document.getElementById(each)).find(Boolean);
      main.insertBefore(after, next && next.parentElement === main ? next : null);
    }
    if (scrolled && after.querySelector(".scroll")) after.querySelector(".scroll").scrollLeft = scrolled;
    if (focused) [...after.querySelectorAll("a")].find((each) => each.getAttribute("href") === focused)?.focus();
    if (id === "part-all") plotEpochs(true);
  }
  live("on");
}
function listen() {
  const path = events();
  if (!path || isHeld || source) return;
  source = new EventSource(path);
  source.onmessage = (event) => take(JSON.parse(event.data));
  source.onerror = () => live("off");
}
function hold() {
  isHeld = !isHeld;
  if (isHeld) { source?.close(); source = null; live("held"); } else listen();
}

// --- all epochs in one plot --------------------------------------------------------------------------------------
async function plotEpochs(again) {
  const place = document.querySelector(".plot[data-series]");
  if (!place || typeof uPlot === "undefined" || (place.dataset.plotted && !again)) return;
  place.dataset.plotted = "yes";
  const answer = await fetch(place.dataset.series);
  if (!answer.ok) return;
  const series = await answer.json();
  if (series.epoch.length < 2) return;
  const style = getComputedStyle(root);
  const of = (name) => style.getPropertyValue(name).trim();
  const axis = { stroke: of("--soft"), grid: { stroke: of("--line"), width: 1 }, ticks: { stroke: of("--line"), width: 1 } };
  const times = { ...axis, values: (plot, ticks) => ticks.map((each) => new Date(each * 1e3).toISOString().slice(11, 19)) };
  place.replaceChildren();
  new uPlot({
    width: place.clientWidth || 800,
    height: 220,
    scales: { x: { time: false } },
    axes: [times, { ...axis, label: "seconds", labelSize: 18 }, { ...axis, scale: "rows", side: 1, label: "rows", labelSize: 18, grid: { show: false } }],
    series: [
      { label: "UTC", value: (plot, at) => at === null ? "" : new Date(at * 1e3).toISOString().slice(0, 19) },
      { label: "took, s", stroke: of("--evaluate"), width: 1.5, points: { show: series.epoch.length < 50 } },
      { label: "rows", scale: "rows", stroke: of("--publish"), width: 1, points: { show: series.epoch.length < 50 } },
    ],
  }, [series.ended_s, series.took_s, series.rows], place);
}

// --- keys ---------------------------------------------------------------------------------------------------------
function help() {
  let shown = document.querySelector("dialog");
  if (shown) { shown.close(); shown.remove(); return; }
  shown = document.createElement("dialog");
  for (const line of ["1 to 8: a view", "j, k: next and previous link of a table", "t: light or dark", "p: stop and go on with updates", "Esc: close this"]) {
    shown.append(Object.assign(document.createElement("p"), { textContent: line }));
  }
  shown.addEventListener("close", () => shown.remove());
  document.body.append(shown);
  shown.showModal();
}
function step(by) {
  const links = [...document.querySelectorAll("main td a, main li a")];
  const at = links.indexOf(document.activeElement);
  links[Math.min(Math.max(at + by, 0), links.length - 1)]?.focus();
}
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, textarea")) return;
  const keys = { t: otherTheme, p: hold, "?": help, j: () => step(1), k: () => step(-1) };
  if (keys[event.key]) { keys[event.key](); return; }
  document.querySelector(`[data-key="${CSS.escape(event.key)}"]`)?.click();
});

let theme = "";
try { theme = localStorage.getItem("holdfast-theme") || ""; } catch { /* private windows */ }
if (theme) root.dataset.theme = theme;
listen();
plotEpochs(false);
