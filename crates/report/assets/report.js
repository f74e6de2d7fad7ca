'use strict';
(function () {
  const views = JSON.parse(document.getElementById('data').textContent);
  const root = document.documentElement;
  const css = name => getComputedStyle(root).getPropertyValue(name).trim();
  const plots = [];

  const UNITS = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  function bytes(v) {
    if (v == null) return '–';
    let unit = 0;
    while (v >= 1023.995 && unit < 4) { v /= 1024; unit++; }
    const digits = unit === 0 || v >= 99.95 ? 0 : v >= 9.995 ? 1 : 2;
    return v.toFixed(digits) + ' ' + UNITS[unit];
  }
  // Round steps in the unit in which the largest tick is written.
  function byteSteps(min, max, space) {
    let unit = 1;
    while (max >= unit * 1024 && unit < 1024 ** 4) unit *= 1024;
    for (const s of [.01, .02, .05, .1, .2, .25, .5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000])
      if ((max - min) / (s * unit) <= space) return [s * unit, unit];
    return [max - min || 1, unit];
  }
  function byteAxis(u, axis, min, max) {
    const [step] = byteSteps(min, max, Math.max(2, u.height / 60));
    const out = [];
    for (let v = Math.ceil(min / step) * step; v <= max; v += step) out.push(v);
    return out;
  }
  function byteLabels(u, ticks) {
    let unit = 0, top = u.scales.y.max;
    while (top >= 1024 && unit < 4) { top /= 1024; unit++; }
    return ticks.map(v => v === 0 ? '0' : +(v / 1024 ** unit).toFixed(2) + ' ' + UNITS[unit]);
  }
  const seconds = v => {
    const sign = v < 0 ? '−' : '', s = Math.abs(v);
    return sign + (s < 180 ? +s.toFixed(1) + ' s' : Math.floor(Math.round(s) / 60) + ':' + String(Math.round(s) % 60).padStart(2, '0'));
  };
  const count = v => v >= 1e6 ? v / 1e6 + 'M' : v >= 1e4 ? v / 1e3 + 'k' : String(v);

  // What happened, as dashed lines with a word; what was done, as whole lines with theirs below.
  function marksPlugin(marks, acts) {
    return { hooks: { draw: u => {
      const { ctx } = u, ratio = devicePixelRatio || 1;
      ctx.save();
      ctx.strokeStyle = css('--frame'); ctx.fillStyle = css('--faint');
      ctx.font = 11 * ratio + 'px system-ui'; ctx.setLineDash([3 * ratio, 3 * ratio]);
      let free = -Infinity;
      for (const [t, word] of marks) {
        const x = Math.round(u.valToPos(t, 'x', true));
        if (x < u.bbox.left || x > u.bbox.left + u.bbox.width) continue;
        ctx.beginPath(); ctx.moveTo(x, u.bbox.top); ctx.lineTo(x, u.bbox.top + u.bbox.height); ctx.stroke();
        const width = ctx.measureText(word).width;
        if (x > free && x + width + 8 * ratio < u.bbox.left + u.bbox.width) {
          ctx.fillText(word, x + 4 * ratio, u.bbox.top + 11 * ratio);
          free = x + width + 12 * ratio;
        }
      }
      ctx.setLineDash([]); ctx.strokeStyle = css('--ink');
      for (const [t, word] of acts) {
        const x = Math.round(u.valToPos(t, 'x', true));
        if (x < u.bbox.left || x > u.bbox.left + u.bbox.width) continue;
        ctx.beginPath(); ctx.moveTo(x, u.bbox.top + 14 * ratio); ctx.lineTo(x, u.bbox.top + u.bbox.height); ctx.stroke();
        ctx.fillText(word, x + 4 * ratio, u.bbox.top + 24 * ratio);
      }
      ctx.restore();
    } } };
  }

  // The reading of a series at or before a place in the joined table.
  function at(u, series, idx) {
    const column = u.data[series];
    for (let i = idx; i >= 0; i--) if (column[i] != null) return column[i];
    return null;
  }

  function tipPlugin(rowsOf) {
    let tip;
    return { hooks: {
      init: u => {
        tip = document.createElement('div'); tip.className = 'tip'; tip.hidden = true;
        u.over.appendChild(tip);
        u.over.addEventListener('mouseleave', () => { tip.hidden = true; });
      },
      setCursor: u => {
        const { idx, left, top } = u.cursor;
        if (idx == null || left < 0 || !u.over.matches(':hover')) { tip.hidden = true; return; }
        tip.replaceChildren();
        const head = document.createElement('div');
        head.textContent = seconds(u.data[0][idx]);
        const table = document.createElement('table');
        for (const [name, value, colour] of rowsOf(u, idx)) {
          const row = table.insertRow();
          const cell = row.insertCell(); cell.textContent = name; cell.style.color = colour;
          row.insertCell().textContent = value;
        }
        tip.append(head, table); tip.hidden = false;
        const right = left + 24 + tip.offsetWidth > u.over.clientWidth;
        tip.style.left = (right ? Math.max(0, left - tip.offsetWidth - 14) : left + 16) + 'px';
        tip.style.top = Math.min(Math.max(0, top - 12), Math.max(0, u.over.clientHeight - tip.offsetHeight)) + 'px';
      },
    } };
  }

  const dark = g => () => css('--d' + g.colour), light = g => () => css('--l' + g.colour);
  const mix = (variable, share) => () => {
    const hex = css(variable), n = parseInt(hex.slice(1), 16);
    return 'rgba(' + (n >> 16) + ',' + (n >> 8 & 255) + ',' + (n & 255) + ',' + share + ')';
  };

  function draw(data, section) {
    const place = selector => section.querySelector(selector);
    const hidden = new Set();
    let showVsz = true, showRepeats = true;

    function axes(right) {
      const common = { stroke: () => css('--faint'), font: '11px system-ui', ticks: { show: false } };
      const all = [
        { ...common, grid: { show: false }, ticks: { show: true, size: 4, width: 1, stroke: () => css('--frame') }, values: (u, t) => t.map(seconds), label: 'time since ' + data.time_from, labelSize: 18, labelFont: '11px system-ui', labelGap: 0, size: 34 },
        { ...common, scale: 'y', grid: { stroke: () => css('--grid'), width: 1 }, splits: byteAxis, values: byteLabels, size: 72 },
      ];
      if (right) all.push({ ...common, scale: 'n', side: 1, grid: { show: false }, values: (u, t) => t.map(count), size: 46, stroke: () => css('--connections') });
      return all;
    }

    function zoomBack(u) {
      u.batch(() => {
        u.setScale('x', { min: data.from, max: data.to });
        u.setScale('y', { min: 0, max: data.top });
      });
    }

    function make(where, height, series, tables, plugins, right) {
      const joined = tables.length === 1 ? tables[0] : uPlot.join(tables);
      const options = {
        width: Math.max(260, where.clientWidth), height, series, plugins, axes: axes(right),
        legend: { show: false }, padding: [10, right ? 0 : 12, 0, 0],
        cursor: { drag: { x: true, y: true, uni: 24 }, points: { show: false }, sync: { key: data.title, setSeries: false }, bind: { dblclick: u => () => { zoomBack(u); return null; } } },
        scales: {
          x: { time: false, auto: false, min: data.from, max: data.to },
          y: { auto: false, min: 0, max: data.top },
          n: { auto: false, min: 0, max: Math.max(1, data.most_counted * 1.1) },
        },
      };
      const plot = new uPlot(options, joined, where);
      zoomBack(plot);
      new ResizeObserver(() => {
        const width = Math.max(260, where.clientWidth);
        if (Math.abs(width - plot.width) > 1) plot.setSize({ width, height });
      }).observe(where);
      plots.push(plot);
      return plot;
    }

    const memory = c => data.metric === 'pss' ? c.pss : c.rss;

    function course() {
      const tables = [], series = [{}], shown = [];
      for (const group of data.groups) {
        const main = group.curves[0];
        if (!main) continue;
        tables.push([main.t, main.vsz]);
        series.push({ label: group.label, scale: 'y', stroke: light(group), width: 1.6, spanGaps: true, points: { show: false }, group, kind: 'vsz' });
      }
      for (const group of data.groups) for (let i = group.curves.length - 1; i >= 0; i--) {
        const curve = group.curves[i];
        tables.push([curve.t, memory(curve)]);
        const thin = i > 0;
        series.push({ label: group.label, scale: 'y', stroke: thin ? mix('--d' + group.colour, .4) : dark(group), width: thin ? 1 : 2.4, spanGaps: true, points: { show: false }, group, kind: thin ? 'repeat' : 'main' });
        if (!thin) shown.push(series.length - 1);
      }
      if (!tables.length) return;
      const where = place('.course');
      const rows = (u, idx) => shown.filter(i => u.series[i].show).map(i => {
        const g = series[i].group, vsz = series.findIndex(s => s.group === g && s.kind === 'vsz');
        const text = bytes(at(u, i, idx)) + (showVsz ? '  of ' + bytes(at(u, vsz, idx)) : '');
        return [g.label, text, css('--d' + g.colour)];
      });
      const marks = (data.groups[0].curves[0] || {}).marks || [];
      const plot = make(where, innerWidth < 620 ? 300 : 420, series, tables, [marksPlugin(marks, []), tipPlugin(rows)]);
      const apply = () => plot.batch(() => series.forEach((s, i) => {
        if (!i) return;
        const on = !hidden.has(s.group) && (s.kind !== 'vsz' || showVsz) && (s.kind !== 'repeat' || showRepeats);
        if (plot.series[i].show !== on) plot.setSeries(i, { show: on });
      }));
      const keys = place('.keys');
      for (const group of data.groups) {
        const key = document.createElement('button');
        key.type = 'button'; key.className = 'key';
        const line = document.createElement('i'); line.style.setProperty('--c', 'var(--d' + group.colour + ')');
        const name = document.createElement('span'); name.textContent = group.label;
        const value = document.createElement('b'); value.textContent = group.settled;
        key.append(line, name, value);
        key.onclick = () => { hidden.has(group) ? hidden.delete(group) : hidden.add(group); key.classList.toggle('off'); apply(); };
        keys.append(key);
      }
      const bind = (id, set) => {
        const box = place(id);
        if (box) box.onchange = () => { set(box.checked); apply(); };
      };
      bind('.vsz', on => { showVsz = on; });
      bind('.repeats', on => { showRepeats = on; });
    }

    function panel(group) {
      const curve = group.curves[0];
      if (!curve) return;
      const where = document.createElement('div');
      const head = document.createElement('h3'); head.textContent = group.label; head.style.color = 'var(--d' + group.colour + ')';
      where.append(head);
      place('.panels').append(where);
      const columns = [curve.t, curve.vsz, curve.rss];
      const line = { scale: 'y', spanGaps: true, points: { show: false } };
      const tells = curve.inner[0].length > 0;
      const series = [{},
        { ...line, label: 'VSZ', stroke: light(group), width: 1.6 },
        { ...line, label: tells ? 'RSS (outer)' : 'RSS', stroke: dark(group), width: 2, fill: tells ? mix('--outer', .75) : mix('--l' + group.colour, .6) }];
      if (!tells) { columns.push(curve.anon); series.push({ ...line, label: 'anonymous', width: 0, fill: mix('--d' + group.colour, .35) }); }
      const more = (column, options) => {
        if (!column.some(v => v > 0)) return;
        columns.push(column); series.push({ ...line, ...options });
      };
      if (data.pss) more(curve.pss, { label: 'PSS', stroke: dark(group), width: 1.4, dash: [7, 3] });
      if (data.lazyfree) more(curve.lazyfree, { label: 'LazyFree', stroke: dark(group), width: 1.4, dash: [2, 3] });
      const right = data.most_counted > 0, green = { scale: 'n', stroke: () => css('--connections'), width: 1.6 };
      if (data.most_connections > 0) { columns.push(curve.connections); series.push({ ...line, ...green, label: 'connections', dash: curve.in_flight[0].length ? [6, 3] : [] }); }
      // These have times of their own.
      const tables = [columns];
      const other = (told, options) => {
        if (!told[0].length) return;
        tables.push(told); series.push({ ...line, ...options });
      };
      other(curve.inner, { label: 'allocated (inner)', width: 0, fill: mix('--inner', .85) });
      other(curve.in_flight, { ...green, label: 'requests in flight' });
      other(curve.tasks, { ...green, label: 'tasks', dash: [2, 3] });
      const rows = (u, idx) => series.slice(1).map((s, i) => {
        const v = at(u, i + 1, idx);
        return [s.label, s.scale === 'n' ? String(v ?? '–') : bytes(v), s.scale === 'n' ? css('--connections') : css('--ink')];
      });
      make(where, 240, series, tables, [marksPlugin(curve.marks, curve.acts), tipPlugin(rows)], right);
    }

    course();
    data.groups.forEach(panel);
  }

  document.getElementById('theme').onclick = () => {
    root.dataset.theme = root.dataset.theme === 'dark' ? 'light' : 'dark';
    try { localStorage.setItem('lowtide-theme', root.dataset.theme); } catch (e) {}
    plots.forEach(p => p.redraw());
  };
  document.querySelectorAll('.view').forEach((section, i) => draw(views[i], section));
})();
