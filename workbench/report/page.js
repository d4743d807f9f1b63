"use strict";
// Draws every figure in the colours of the page, and again when the reader switches between light and dark.
(function () {
  const root = document.documentElement;
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  root.dataset.theme = location.hash === "#dark" || dark.matches ? "dark" : "light";

  // heat: zero fades into the page. balance: the middle (an even share) does; cold is blue, hot is red.
  const scales = {
    light: { heat: [[0, "#f3f6f9"], [0.25, "#bfd8ec"], [0.5, "#7fb2d9"], [0.75, "#3577b1"], [1, "#0d3a66"]],
             balance: [[0, "#6f9fce"], [0.333, "#f2f4f6"], [0.6, "#f0a973"], [1, "#b3261e"]] },
    dark: { heat: [[0, "#1b232d"], [0.25, "#1f4a6e"], [0.5, "#2f7fb0"], [0.75, "#6fbbe0"], [1, "#e3f4fb"]],
            balance: [[0, "#3f78b5"], [0.333, "#222b36"], [0.6, "#b5632d"], [1, "#ff7a66"]] },
  };
  const colour = (name) => getComputedStyle(root).getPropertyValue("--" + name).trim();

  function themed(spec) {
    const copy = JSON.parse(spec);
    const theme = scales[root.dataset.theme];
    const layout = copy.layout;
    Object.assign(layout, { paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", autosize: true,
      font: { family: getComputedStyle(document.body).fontFamily, size: 12.5, color: colour("soft") } });
    layout.hoverlabel = Object.assign({}, layout.hoverlabel, { bgcolor: colour("card"), bordercolor: colour("line"), font: { color: colour("ink") } });
    for (const key of Object.keys(layout)) {
      if (/^[xy]axis\d*$/.test(key)) {
        Object.assign(layout[key], { gridcolor: colour("grid"), linecolor: colour("line"), zerolinecolor: colour("line"), automargin: true });
        const title = layout[key].title || {};
        title.font = { size: 12.5, color: colour("muted") };
        layout[key].title = title;
      }
    }
    for (const menu of (layout.updatemenus || []).concat(layout.sliders || [])) {
      Object.assign(menu, { bgcolor: colour("mute-bg"), bordercolor: colour("line"), font: { color: colour("ink"), size: 12 } });
      menu.showactive = false; // the active colour of plotly.js is white whatever the theme
      if (menu.steps) Object.assign(menu, { bgcolor: colour("muted"), activebgcolor: colour("accent"), tickcolor: colour("muted") });
    }
    for (const trace of copy.data) {
      if (trace.meta && theme[trace.meta]) {
        trace.colorscale = theme[trace.meta];
        const bar = Object.assign({ outlinewidth: 0, tickfont: { color: colour("soft") } }, trace.colorbar);
        bar.title = Object.assign({}, bar.title, { font: { size: 12, color: colour("muted") } });
        trace.colorbar = bar;
      }
      if (trace.type === "icicle") Object.assign(trace, { marker: { line: { color: colour("card"), width: 1 }, colorscale: theme.heat } });
    }
    return copy;
  }

  // No tool bar: dragging zooms and a double click goes back, as the footer says.
  const config = { responsive: true, displayModeBar: false };
  const plots = Array.from(document.querySelectorAll(".plot"));

  function draw(element) {
    const spec = document.getElementById("spec-" + element.id.slice("plot-".length)).textContent;
    const drawn = themed(spec);
    drawn.layout.height = Number(element.dataset.height);
    return Plotly.newPlot(element, drawn.data, drawn.layout, config);
  }
  function drawAll() {
    return Promise.all(plots.map(draw)).then(() => { root.dataset.drawn = String(plots.length); });
  }
  document.getElementById("theme").addEventListener("click", () => {
    root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark";
    drawAll();
  });
  drawAll();
})();
