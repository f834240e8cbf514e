// The tables of the console, as the live stream tells them.
const names = ["signals", "objectives", "runs", "operations"];
const tables = Object.fromEntries(names.map((n) => [n, new Map()]));
const status = document.getElementById("state");

for (const name of names) {
  const title = document.createElement("h2");
  title.textContent = name;
  const table = document.createElement("table");
  table.id = name;
  document.querySelector("main").append(title, table);
}

function draw() {
  for (const name of names) {
    const rows = [...tables[name].values()].map((row) => {
      const tr = document.createElement("tr");
      for (const text of [row.id, row.state, row.text]) {
        const td = document.createElement("td");
        td.textContent = text;
        tr.append(td);
      }
      return tr;
    });
    document.getElementById(name).replaceChildren(...rows);
  }
}

function say(text, stale) {
  status.textContent = text;
  status.classList.toggle("stale", stale);
}

function show(state) {
  say(`${state.summary} · epoch ${state.authority.epoch} · event ${state.as_of.event_sequence}`, state.stale);
}

function take(change) {
  for (const name of names) for (const row of change[name] ?? []) tables[name].set(row.id, row);
  for (const { table, id } of change.gone ?? []) tables[table].delete(id);
  show(change.state);
  draw();
}

const live = new EventSource("/api/live");
live.addEventListener("reset", (e) => {
  for (const name of names) tables[name].clear();
  take(JSON.parse(e.data));
});
live.addEventListener("rows", (e) => take(JSON.parse(e.data)));
live.addEventListener("state", (e) => show(JSON.parse(e.data)));
live.addEventListener("error", async () => {
  say("no connection to coordctl console; what is shown may be old", true);
  const answer = await fetch("/api/session").catch(() => null);
  if (answer && !answer.ok) say((await answer.json()).error.next, true);
});
