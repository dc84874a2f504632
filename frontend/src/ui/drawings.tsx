// Drawings in SVG: <HeatMap/> (rows × columns), <Gantt/> (what ran when), <Graph/> (jobs and what they wait for).
//
//   <HeatMap label="Jobs by hour" rows={["Mon", …]} columns={["0", …]} value={(r, c) => n | null} told={(r, c, n) => "…"}/>
//   <Gantt label="Flow" lines={[{ id, label, status, waitsFrom, from, to, href }]}/>           times in ms; `to` null: it runs
//   <Graph label="Flow" nodes={[{ id, label, status, href, parents }]}/>                      laid out in layers, left to right
import type { JSX } from "preact";
import type { Status } from "../api.ts";
import { layered } from "../lib/layout.ts";
import { now } from "../lib/prefs.ts";
import { navigate } from "../lib/router.tsx";
import { duration } from "../lib/words.ts";

export type HeatMapProps = {
  readonly label: string;
  readonly rows: readonly string[];
  readonly columns: readonly string[];
  readonly value: (row: number, column: number) => number | null;
  readonly told: (row: number, column: number, value: number) => string;
};

export function HeatMap({ label, rows, columns, value, told }: HeatMapProps): JSX.Element {
  const size = 20, left = 44, top = 18;
  const all = rows.flatMap((_, r) => columns.map((_, c) => value(r, c)));
  const most = Math.max(...all.map((one) => one ?? 0), 1e-9);
  return (
    <div class="svg-scroll" tabIndex={0} role="region" aria-label={label}>
      <svg width={left + columns.length * size} height={top + rows.length * size} role="img" aria-label={label}>
        {columns.map((name, c) => (columns.length <= 12 || c % 3 === 0) && <text key={name} class="svg-text" x={left + c * size + size / 2} y={12} text-anchor="middle">{name}</text>)}
        {rows.map((name, r) => (
          <g key={name}>
            <text class="svg-text" x={0} y={top + r * size + 14}>{name}</text>
            {columns.map((column, c) => {
              const one = value(r, c);
              return (
                <rect key={column} class={one ? "heat-cell" : "heat-cell heat-none"} x={left + c * size} y={top + r * size} width={size} height={size} rx={3} fill-opacity={one ? 0.15 + 0.85 * (one / most) : 1}>
                  <title>{one === null ? `${name} ${column}: nothing` : told(r, c, one)}</title>
                </rect>
              );
            })}
          </g>
        ))}
      </svg>
    </div>
  );
}

export type GanttLine = {
  readonly id: string;
  readonly label: string;
  readonly status: Status;
  readonly waitsFrom: number;
  readonly from: number | null;
  readonly to: number | null;
  readonly href?: string;
};

export function Gantt({ label, lines }: { label: string; lines: readonly GanttLine[] }): JSX.Element {
  const end = Math.max(...lines.map((line) => line.to ?? now.value)), begin = Math.min(...lines.map((line) => line.waitsFrom));
  const left = 180, width = 640, row = 28;
  const x = (at: number): number => left + ((at - begin) / Math.max(end - begin, 1)) * width;
  return (
    <div class="svg-scroll" tabIndex={0} role="region" aria-label={label}>
      <svg width={left + width + 90} height={lines.length * row + 24} role="img" aria-label={label}>
        {[0, 0.25, 0.5, 0.75, 1].map((part) => (
          <g key={part}><line class="gantt-line" x1={left + part * width} x2={left + part * width} y1={18} y2={lines.length * row + 24} />
            <text class="svg-text" x={left + part * width} y={12} text-anchor="middle">{duration(((end - begin) * part) / 1000)}</text></g>
        ))}
        {lines.map((line, n) => {
          const y = 24 + n * row, from = line.from ?? line.to ?? now.value, to = line.to ?? now.value;
          return (
            <g key={line.id} class={line.href ? "node-link" : ""} onClick={() => line.href && navigate(line.href)}>
              <title>{`${line.label}: ${line.status}, waited ${duration((from - line.waitsFrom) / 1000)}${line.from === null ? "" : `, ran ${duration((to - line.from) / 1000)}`}`}</title>
              <text class="svg-ink" x={0} y={y + 14}>{line.label.length > 26 ? `${line.label.slice(0, 25)}…` : line.label}</text>
              <rect class="gantt-wait" x={x(line.waitsFrom)} y={y + 6} width={Math.max(x(from) - x(line.waitsFrom), 1)} height={8} rx={2} />
              {line.from !== null && <rect class={`tone-fill-${line.status}`} x={x(line.from)} y={y + 3} width={Math.max(x(to) - x(line.from), 2)} height={14} rx={3} />}
              {line.from !== null && <text class="svg-text" x={x(to) + 6} y={y + 14}>{duration((to - line.from) / 1000)}</text>}
            </g>
          );
        })}
      </svg>
    </div>
  );
}

export type GraphNode = { readonly id: string; readonly label: string; readonly status: Status; readonly href?: string; readonly parents: readonly string[] };

export function Graph({ label, nodes }: { label: string; nodes: readonly GraphNode[] }): JSX.Element {
  const wide = 168, high = 44, gapX = 56, gapY = 16;
  const places = layered(nodes);
  const across = Math.max(...[...places.values()].map((place) => place.layer), 0) + 1;
  const tall = Math.max(...[...places.values()].map((place) => place.row), 0) + 1;
  const at = (id: string): { x: number; y: number } => ({ x: (places.get(id)?.layer ?? 0) * (wide + gapX) + 1, y: (places.get(id)?.row ?? 0) * (high + gapY) + 1 });
  return (
    <div class="svg-scroll" tabIndex={0} role="region" aria-label={label}>
      <svg width={across * (wide + gapX) - gapX + 2} height={tall * (high + gapY) - gapY + 2} aria-label={label}>
        <defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path class="arrow" d="M0 0 8 4 0 8Z" /></marker></defs>
        {nodes.flatMap((node) => node.parents.filter((parent) => places.has(parent)).map((parent) => {
          const a = at(parent), b = at(node.id), x1 = a.x + wide, y1 = a.y + high / 2, y2 = b.y + high / 2, half = (b.x - x1) / 2;
          return <path key={`${parent} ${node.id}`} class="edge" marker-end="url(#arrow)" d={`M${x1} ${y1}C${x1 + half} ${y1} ${b.x - half} ${y2} ${b.x} ${y2}`} />;
        }))}
        {nodes.map((node) => {
          const { x, y } = at(node.id);
          return (
            <a key={node.id} class="node-link" href={node.href} onClick={(event) => node.href && (event.preventDefault(), navigate(node.href))}>
              <title>{`${node.label}: ${node.status}`}</title>
              <rect class="node-box" x={x} y={y} width={wide} height={high} rx={6} />
              <rect class={`tone-fill-${node.status}`} x={x} y={y + 8} width={3} height={high - 16} rx={1.5} />
              <text class="svg-ink" x={x + 14} y={y + 18}>{node.label.length > 21 ? `${node.label.slice(0, 20)}…` : node.label}</text>
              <text class="svg-text" x={x + 14} y={y + 34}>{node.status}</text>
            </a>
          );
        })}
      </svg>
    </div>
  );
}
