// A table: dense, with a cursor that j and k move, rows that x selects, and columns that sort where all rows are there.
//
//   const chosen = useSelection();
//   <Table label="Jobs" rows={jobs} id={(job) => job.id} columns={[
//     { id: "type", title: "Type", cell: (job) => <Link to={`/jobs/${job.id}`}>{job.type}</Link> },
//     { id: "depth", title: "Ready", align: "end", sort: (queue) => queue.depth, cell: … },
//   ]} selection={chosen} sort={params.sort} onSort={(sort) => params.set({ sort })}/>
//
// The first link of a row is where Enter goes. `sort` is a column's id, with a minus for largest first. Columns with `minor` step
// aside on narrow pages.
import { type Signal, useSignal } from "@preact/signals";
import type { ComponentChildren, JSX } from "preact";
import { useRef } from "preact/hooks";
import { useKeys } from "../lib/keys.ts";
import { Icon } from "./icons.tsx";

export type Column<Row> = {
  readonly id: string;
  readonly title: ComponentChildren;
  readonly cell: (row: Row) => ComponentChildren;
  readonly align?: "start" | "end";
  /** What it sorts by; only where the table has every row there is. */
  readonly sort?: (row: Row) => number | string;
  readonly minor?: boolean;
  /** It takes what room is left, and cuts what does not fit. */
  readonly grows?: boolean;
};

export type Selection = {
  readonly ids: Signal<ReadonlySet<string>>;
  /** Not only the rows shown, but all that match. */
  readonly isAll: Signal<boolean>;
  readonly toggle: (id: string) => void;
  readonly set: (ids: readonly string[]) => void;
  readonly clear: () => void;
};

export function useSelection(): Selection {
  const ids = useSignal<ReadonlySet<string>>(new Set());
  const isAll = useSignal(false);
  const set = (wanted: readonly string[]): void => {
    ids.value = new Set(wanted);
    isAll.value = false;
  };
  return {
    ids, isAll, set,
    clear: () => set([]),
    toggle: (id) => set(ids.value.has(id) ? [...ids.value].filter((one) => one !== id) : [...ids.value, id]),
  };
}

export type TableProps<Row> = {
  readonly label: string;
  readonly rows: readonly Row[];
  readonly id: (row: Row) => string;
  readonly columns: readonly Column<Row>[];
  readonly selection?: Selection;
  readonly sort?: string;
  readonly onSort?: (sort: string) => void;
  /** What a row is called, where its checkbox is read out. */
  readonly name?: (row: Row) => string;
  readonly isKeyed?: boolean;
};

export function sorted<Row>(rows: readonly Row[], columns: readonly Column<Row>[], sort: string): readonly Row[] {
  const isDown = sort.startsWith("-");
  const by = columns.find((column) => column.id === sort.replace(/^-/, ""))?.sort;
  if (by === undefined) return rows;
  const order = [...rows].sort((a, b) => {
    const [x, y] = [by(a), by(b)];
    return x < y ? -1 : x > y ? 1 : 0;
  });
  return isDown ? order.reverse() : order;
}

export function Table<Row>({ label, rows, id, columns, selection, sort = "", onSort, name = id, isKeyed = true }: TableProps<Row>): JSX.Element {
  const body = useRef<HTMLTableSectionElement>(null);
  const shown = sorted(rows, columns, sort);
  const lines = (): HTMLTableRowElement[] => [...(body.current?.rows ?? [])];
  const cursor = (): number => lines().findIndex((line) => line.contains(document.activeElement));
  const move = (step: number): void => {
    const all = lines();
    const at = cursor();
    const line = all[at < 0 ? (step > 0 ? 0 : all.length - 1) : Math.min(Math.max(at + step, 0), all.length - 1)];
    (line?.querySelector<HTMLElement>("a, button") ?? line)?.focus();
    line?.scrollIntoView({ block: "nearest" });
  };
  const mark = (): void => {
    const row = shown[cursor()];
    if (row !== undefined) selection?.toggle(id(row));
  };
  useKeys(isKeyed ? [
    ["j", "Next row", () => move(1)],
    ["k", "Row before", () => move(-1)],
    ...(selection ? [["x", "Select the row", mark] as const] : []),
  ] : []);
  const chosen = selection?.ids.value;
  const isEvery = rows.length > 0 && rows.every((row) => chosen?.has(id(row)));
  return (
    <div class="table-scroll" tabIndex={0} role="region" aria-label={label}>
      <table class="table">
        <thead>
          <tr>
            {selection && <th class="check"><input type="checkbox" aria-label="Select all on this page" checked={isEvery} onChange={() => selection.set(isEvery ? [] : rows.map(id))} /></th>}
            {columns.map((column) => (
              <th key={column.id} scope="col" class={cls(column)} aria-sort={sort === column.id ? "ascending" : sort === `-${column.id}` ? "descending" : undefined}>
                {column.sort && onSort ? (
                  <button type="button" class="sorter" onClick={() => onSort(sort === `-${column.id}` ? column.id : `-${column.id}`)}>
                    {column.title}{sort.replace(/^-/, "") === column.id && <Icon name={sort.startsWith("-") ? "down" : "up"} size={10} />}
                  </button>
                ) : column.title}
              </th>
            ))}
          </tr>
        </thead>
        <tbody ref={body}>
          {shown.map((row) => {
            const key = id(row);
            return (
              <tr key={key} class={chosen?.has(key) ? "chosen" : ""}>
                {selection && <td class="check"><input type="checkbox" aria-label={`Select ${name(row)}`} checked={chosen?.has(key)} onChange={() => selection.toggle(key)} /></td>}
                {columns.map((column) => <td key={column.id} class={cls(column)}>{column.cell(row)}</td>)}
              </tr>
            );
          })}
        </tbody>
      </table>
    </div>
  );
}

const cls = <Row,>(column: Column<Row>): string => `${column.align === "end" ? "end" : ""} ${column.minor ? "minor" : ""} ${column.grows ? "grows" : ""}`.trim();
